"""Settings of the audit log."""

from pydantic import Field

from filmgate.settings.sections import Section


class AuditSettings(Section):
    """The audit log: how long it is kept, how its heads are signed and where they are anchored."""

    retention_seconds: float = Field(
        default=7 * 365.25 * 86400.0,
        ge=86400,
        description="age at which records are deleted; 7 years by default, independent of clips",
    )
    checkpoint_seconds: float = Field(
        default=300.0, gt=0, le=86400, description="interval at which new heads are signed and anchored"
    )
    signing_key: str = Field(
        default="",
        description="kms://KEY, an asymmetric KMS key (ECC_NIST_P256); empty: derived from the identity of a "
        "file keyring, and no signature with a KMS keyring",
    )
    anchor: str = Field(
        default="",
        description="file:///FILE or s3://BUCKET/PREFIX (a bucket with Object Lock) that receives the heads; "
        "empty: audit-heads.jsonl in the data folder",
    )
    region: str = Field(default="", description="AWS region of key and bucket; empty: AWS_DEFAULT_REGION")
    endpoint: str = Field(default="", description="endpoint URL of S3; empty: AWS")
    kms_endpoint: str = Field(default="", description="endpoint URL of KMS; empty: AWS")
