"""The settings of operation: audit log, objectives, management port and traces."""

from pydantic import Field

from filmgate.jobs import DEFAULT_SLO_TARGET
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
        description="kms://KEY, an asymmetric KMS key (ECC_NIST_P256); if empty, the key is derived from the "
        "identity of a file keyring, and heads are not signed with a KMS keyring",
    )
    anchor: str = Field(
        default="",
        description="file:///FILE or s3://BUCKET/PREFIX (a bucket with Object Lock) that receives the heads; "
        "if empty, audit-heads.jsonl in the data folder",
    )
    region: str = Field(default="", description="AWS region of key and bucket; if empty, AWS_DEFAULT_REGION")
    endpoint: str = Field(default="", description="endpoint URL of S3; if empty, the AWS endpoint")
    kms_endpoint: str = Field(default="", description="endpoint URL of KMS; if empty, the AWS endpoint")


class SloSettings(Section):
    """Service level objectives: how fast a clip must be ready, and how many may be late.

    The objective of a clip without a class is `admission.slo_seconds`. OBJECTIVE is SECONDS, SECONDS@TARGET
    or @TARGET, such as 30@0.99. A missing part comes from the class, or from the default.
    """

    target: float = Field(
        default=DEFAULT_SLO_TARGET,
        gt=0,
        lt=1,
        description="share of jobs that must meet their objective; 0.95 is 95 %",
    )
    classes: str = Field(
        default="",
        description="comma-separated NAME=WIDTHxHEIGHT/SECONDS:OBJECTIVE, for example "
        "short=1280x720/5:30@0.99; a clip belongs to the first class it fits into",
    )
    tenants: str = Field(
        default="",
        description="comma-separated TENANT=OBJECTIVE or TENANT/CLASS=OBJECTIVE; `filmgate tenant set` takes "
        "precedence",
    )
    window_seconds: float = Field(
        default=28 * 86400.0, ge=3600, le=90 * 86400.0, description="the window of the error budget"
    )
    runbooks: str = Field(
        default="",
        description="base URL of the published runbooks, for the `runbook_url` annotation of alerts; if "
        "empty, their path in the source folder",
    )


class ManagementSettings(Section):
    """The management port of servers and workers: `/metrics`, `/healthz` and `/readyz` without a key."""

    enabled: bool = Field(default=True, description="whether there is a management port")
    host: str = Field(
        default="127.0.0.1",
        min_length=1,  # empty is every address for the operating system
        description="address to listen on; metrics contain tenant names: expose it only to your own network",
    )
    port: int = Field(
        default=9464,
        ge=0,
        le=65535,
        description="first port to try: a process takes the first free one of 16; 0 takes any free port",
    )
    cloudwatch_seconds: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="interval at which metrics are written to stdout in the CloudWatch embedded metric "
        "format; 0 means never",
    )
    max_tenants: int = Field(
        default=100,
        ge=0,
        description="maximum number of tenants for which latency histograms have a `tenant` label; above it, "
        "the label is empty",
    )


class TraceSettings(Section):
    """OpenTelemetry traces. The other OTEL_* variables, such as OTEL_EXPORTER_OTLP_HEADERS, apply too."""

    endpoint: str = Field(
        default="",
        description="base URL of an OTLP/HTTP receiver, such as http://collector:4318; if empty, "
        "OTEL_EXPORTER_OTLP_ENDPOINT, and without that no traces",
    )
    ratio: float = Field(default=1.0, ge=0, le=1, description="fraction of new traces that are exported")
    timeout_seconds: float = Field(
        default=5.0, gt=0, le=60, description="timeout of one export, and of the last export at exit"
    )
