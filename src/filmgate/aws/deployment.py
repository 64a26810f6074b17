"""The AWS resources and roles of one installation, and the part of them that belongs to one tenant."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import KeyTemplate

# The key of buckets that have no other. A tenant's alias cannot be equal, because tenants' ids have no slash.
BUCKETS_ALIAS = "alias/filmgate/buckets"
# Stands for the tenant id in a policy; the caller that assumes the role sets it as a session tag.
TENANT_TAG = "${aws:PrincipalTag/tenant}"
_PARTITIONS: Mapping[str, str] = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}


class Role(StrEnum):
    """A process or a person with its own IAM policy."""

    API = "api"
    WORKER = "worker"
    MANAGED = "managed"
    OPERATOR = "operator"


# They use the tenants' keys, and each has a ServiceAccount.
PROCESSES = (Role.API, Role.WORKER, Role.MANAGED)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The AWS resources of one installation: bucket, keys and queues in one account and region."""

    objects: S3Location
    account: str
    region: str
    key: KeyTemplate
    has_kms_keyring: bool = True
    staging: S3Location | None = None
    queues: tuple[str, ...] = ()  # names of SQS queues, with dead-letter queues; `*` for a model's name
    models: S3Location | None = None
    has_comprehend: bool = False
    models_key: str = "alias/filmgate-models"  # encrypts the weights: an alias or the ARN of a key
    bedrock_model: str = "*"  # the model of the provider; empty if the provider is not Bedrock
    bedrock_region: str = "*"  # may be another region than that of the deployment
    staging_key: str = ""  # ARN of the key with which a provider encrypts clips in the staging bucket
    audit_key: str = ""  # signs the audit log: an alias, id or ARN of an asymmetric key
    audit_anchor: S3Location | None = None  # in a bucket with Object Lock

    @property
    def partition(self) -> str:
        return next((name for start, name in _PARTITIONS.items() if self.region.startswith(start)), "aws")

    @property
    def s3_service(self) -> str:
        """S3's name in `kms:ViaService`, which includes the region."""
        suffix = ".cn" if self.partition == "aws-cn" else ""
        return f"s3.{self.region}.amazonaws.com{suffix}"

    @property
    def root_arn(self) -> str:
        """The account, as a principal of policies."""
        return f"arn:{self.partition}:iam::{self.account}:root"

    @property
    def prefix(self) -> str:
        return self.objects.prefix

    def bucket_arn(self, location: S3Location | None = None) -> str:
        """The ARN of the bucket of a location; by default, of the clips."""
        return f"arn:{self.partition}:s3:::{(location or self.objects).bucket}"

    def role_arn(self, role: Role) -> str:
        return f"arn:{self.partition}:iam::{self.account}:role/filmgate-{role}"

    def key_arn(self, name: str) -> str:
        """The ARN of a key; of all keys if it is named by an alias, which a condition must then name."""
        if name.startswith("arn:") and ":key/" in name:
            return name
        key_id = "*" if alias_of(name) else name
        return f"arn:{self.partition}:kms:{self.region}:{self.account}:key/{key_id}"


def alias_of(key_name: str) -> str:
    """The alias in the name of a key; empty if the key is named by id or ARN."""
    _, found, alias = key_name.rpartition("alias/")
    return found + alias if found else ""


@dataclass(frozen=True, slots=True)
class TenantScope:
    """The part of a deployment that belongs to one tenant, or to all (`*`)."""

    deployment: Deployment
    tenant: str = "*"

    def objects(self, part: str = "*") -> str:
        return f"{self.deployment.bucket_arn()}/{self.deployment.prefix}{self.tenant}/{part}"

    @property
    def list_prefix(self) -> str:
        """The prefixes that may be listed."""
        prefix = self.deployment.prefix
        return f"{prefix}*" if self.tenant == "*" else f"{prefix}{self.tenant}/*"

    @property
    def keys(self) -> str:
        """The ARN of the tenant's key; of all keys if it has an alias, which a condition then names."""
        return self.deployment.key_arn(self._key_name)

    @property
    def alias(self) -> str:
        """The alias of the tenant's key; empty if the key is named by id or ARN."""
        return alias_of(self._key_name)

    @property
    def _key_name(self) -> str:
        return self.deployment.key.text.replace("{tenant}", self.tenant)
