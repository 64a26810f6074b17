"""Least-privilege IAM, key and bucket policies for each role and tenant, as pure values.

Every Allow names its resources, and AWS lists every condition key for its action (docs/aws.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from filmgate.aws.roles import Role
from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import CONTEXT_KEY, KeyTemplate

Document = dict[str, object]
Conditions = Mapping[str, Mapping[str, str | Sequence[str]]]

VERSION = "2012-10-17"
# Stands for the tenant id in a policy; the caller that assumes the role sets it as a session tag.
TENANT_TAG = "${aws:PrincipalTag/tenant}"
CONTEXT = f"kms:EncryptionContext:{CONTEXT_KEY}"
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
_ENCRYPTION = "s3:x-amz-server-side-encryption"


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
    staging_key: str = ""  # ARN of the key with which a provider encrypts clips in the staging bucket

    @property
    def partition(self) -> str:
        return next((name for start, name in _PARTITIONS.items() if self.region.startswith(start)), "aws")

    @property
    def s3_service(self) -> str:
        """S3's name in `kms:ViaService`, which includes the region."""
        suffix = ".cn" if self.partition == "aws-cn" else ""
        return f"s3.{self.region}.amazonaws.com{suffix}"

    @property
    def bucket_arn(self) -> str:
        return f"arn:{self.partition}:s3:::{self.objects.bucket}"

    @property
    def prefix(self) -> str:
        return self.objects.prefix

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
        return f"{self.deployment.bucket_arn}/{self.deployment.prefix}{self.tenant}/{part}"

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


def allow(
    sid: str, actions: Sequence[str], resource: str | Sequence[str], when: Conditions | None = None
) -> Document:
    """One Allow statement."""
    statement: Document = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resource}
    return statement | ({"Condition": when} if when else {})


def _list(scope: TenantScope) -> list[Document]:
    bucket = scope.deployment.bucket_arn
    return [
        allow(
            "ListObjects",
            ["s3:ListBucket", "s3:ListBucketVersions"],
            bucket,
            {"StringLike": {"s3:prefix": scope.list_prefix}},
        ),
        # S3 has no prefix condition for this action: the role sees the names of all unfinished uploads.
        allow("ListUnfinishedUploads", ["s3:ListBucketMultipartUploads"], bucket),
    ]


def _read(scope: TenantScope) -> list[Document]:
    return [allow("ReadObjects", ["s3:GetObject"], scope.objects())]


def _delete(scope: TenantScope) -> list[Document]:
    actions = ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"]
    return [allow("DeleteObjects", actions, scope.objects())]


def _write(scope: TenantScope) -> list[Document]:
    return [allow("WriteObjects", ["s3:PutObject"], scope.objects())]


def _write_sources(scope: TenantScope) -> list[Document]:
    """The API stores uploads only."""
    return [allow("WriteSources", ["s3:PutObject"], scope.objects("*/source"))]


def _use_key_through_s3(scope: TenantScope) -> list[Document]:
    via = {"kms:ViaService": scope.deployment.s3_service}
    # S3 needs Decrypt to complete a multipart upload.
    return [_use_key("UseKeyThroughS3", ["kms:GenerateDataKey", "kms:Decrypt"], scope, via)]


def _seal_prompts(scope: TenantScope) -> list[Document]:
    return _use_key_for_prompts(scope, ["kms:GenerateDataKey", "kms:Decrypt"])


def _open_prompts(scope: TenantScope) -> list[Document]:
    return _use_key_for_prompts(scope, ["kms:Decrypt"])


def _use_key_for_prompts(scope: TenantScope, actions: list[str]) -> list[Document]:
    """Filmgate itself encrypts the prompts in the database, with data keys from KMS."""
    return [_use_key("UseKeyForPrompts", actions, scope, {})] if scope.deployment.has_kms_keyring else []


def _use_key(sid: str, actions: list[str], scope: TenantScope, exact: Mapping[str, str]) -> Document:
    conditions: dict[str, dict[str, str]] = {"StringEquals": dict(exact)}
    if scope.tenant == "*":
        conditions["Null"] = {CONTEXT: "false"}
    else:
        conditions["StringEquals"][CONTEXT] = scope.tenant
    if scope.alias:
        conditions["ForAnyValue:StringLike"] = {"kms:ResourceAliases": scope.alias}
    return allow(sid, actions, scope.keys, {name: rule for name, rule in conditions.items() if rule})


def _use_provider(scope: TenantScope) -> list[Document]:
    """Bedrock writes clips to a staging bucket, from which the worker moves them to the tenant's prefix."""
    deployment = scope.deployment
    # A provider may run in another region than the deployment.
    models = f"arn:{deployment.partition}:bedrock:*::foundation-model/*"
    invocations = f"arn:{deployment.partition}:bedrock:*:{deployment.account}:async-invoke/*"
    statements = [
        allow("StartProviderJobs", ["bedrock:InvokeModel"], models),
        allow("ReadProviderJobs", ["bedrock:GetAsyncInvoke", "bedrock:ListAsyncInvokes"], invocations),
    ]
    if deployment.staging is not None:
        statements += _move_staged_clips(deployment.partition, deployment.staging)
        if deployment.staging_key:
            actions = ["kms:Decrypt", "kms:GenerateDataKey"]
            statements.append(_use_bucket_key("UseStagingKey", actions, deployment, deployment.staging_key))
    return statements


def _move_staged_clips(partition: str, staging: S3Location) -> list[Document]:
    bucket, prefix = f"arn:{partition}:s3:::{staging.bucket}", staging.prefix
    actions = ["s3:PutObject", "s3:GetObject", "s3:DeleteObject", "s3:DeleteObjectVersion"]
    # The doctor lists the prefix without its trailing slash.
    listed: Conditions = {"StringLike": {"s3:prefix": sorted({prefix.rstrip("/"), f"{prefix}*"})}}
    return [
        allow("MoveStagedClips", actions, f"{bucket}/{prefix}*"),
        allow("ListStagedClips", ["s3:ListBucketVersions"], bucket, listed),
    ]


def _wake_workers(scope: TenantScope) -> list[Document]:
    """SQS messages that wake workers. Every sender also sweeps, so the API reads dead letters too."""
    deployment = scope.deployment
    where = f"arn:{deployment.partition}:sqs:{deployment.region}:{deployment.account}"
    actions = [
        "sqs:SendMessage",
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
        "sqs:ChangeMessageVisibility",
        "sqs:GetQueueUrl",
        "sqs:GetQueueAttributes",
    ]
    queues = [f"{where}:{name}" for name in deployment.queues]
    return [allow("WakeWorkers", actions, queues)] if queues else []


def _classify_prompts(scope: TenantScope) -> list[Document]:
    """Comprehend has no resources for this action."""
    actions = ["comprehend:DetectToxicContent"]
    return [allow("ClassifyPrompts", actions, "*")] if scope.deployment.has_comprehend else []


def _pull_models(scope: TenantScope) -> list[Document]:
    deployment = scope.deployment
    if deployment.models is None:
        return []
    bucket = f"arn:{deployment.partition}:s3:::{deployment.models.bucket}"
    listed: Conditions = {"StringLike": {"s3:prefix": f"{deployment.models.prefix}*"}}
    return [
        allow("PullModels", ["s3:GetObject"], f"{bucket}/{deployment.models.prefix}*"),
        # Without ListBucket, S3 answers 403 instead of 404 for a model that does not exist.
        allow("ListModels", ["s3:ListBucket"], bucket, listed),
        _use_bucket_key("DecryptModels", ["kms:Decrypt"], deployment, deployment.models_key),
    ]


def _use_bucket_key(sid: str, actions: Sequence[str], deployment: Deployment, key: str) -> Document:
    """A key that S3 uses for us, without a tenant in the encryption context."""
    region = key.split(":")[3] if key.startswith("arn:") else deployment.region
    conditions: dict[str, dict[str, str]] = {
        "StringEquals": {"kms:ViaService": deployment.s3_service.replace(deployment.region, region)}
    }
    if alias := alias_of(key):
        conditions["ForAnyValue:StringLike"] = {"kms:ResourceAliases": alias}
    return allow(sid, actions, deployment.key_arn(key), conditions)


def _administer(scope: TenantScope) -> list[Document]:
    """Configure the bucket and the tenants' keys, with no permission to read what they protect."""
    deployment = scope.deployment
    bucket_actions = [
        "s3:GetBucketVersioning",
        "s3:GetEncryptionConfiguration",
        "s3:GetLifecycleConfiguration",
        "s3:PutBucketVersioning",
        "s3:PutEncryptionConfiguration",
        "s3:PutLifecycleConfiguration",
    ]
    key_actions = ["kms:DescribeKey", "kms:DisableKey", "kms:EnableKeyRotation", "kms:ScheduleKeyDeletion"]
    with_alias: Conditions = {"ForAnyValue:StringLike": {"kms:ResourceAliases": scope.alias}}
    statements = [
        allow("ManageBucket", bucket_actions, deployment.bucket_arn),
        allow("ManageKeys", key_actions, scope.keys, with_alias if scope.alias else {}),
        allow("CreateKeys", ["kms:CreateKey"], "*", {"StringEquals": {"kms:KeySpec": "SYMMETRIC_DEFAULT"}}),
    ]
    if scope.alias:
        alias = f"arn:{deployment.partition}:kms:{deployment.region}:{deployment.account}:{scope.alias}"
        actions = ["kms:CreateAlias", "kms:DeleteAlias"]
        statements.append(allow("ManageAliases", actions, [alias, scope.keys]))
    return statements


Grant = Callable[[TenantScope], list[Document]]
_WORK: tuple[Grant, ...] = (_list, _read, _write, _delete, _use_key_through_s3, _open_prompts, _wake_workers)
GRANTS: Mapping[Role, tuple[Grant, ...]] = {
    Role.API: (
        _list,
        _read,
        _write_sources,
        _delete,
        _use_key_through_s3,
        _seal_prompts,
        _wake_workers,
        _classify_prompts,
    ),
    Role.WORKER: (*_WORK, _pull_models),
    Role.MANAGED: (*_WORK, _use_provider),
    Role.OPERATOR: (_list, _administer),
}


def role_policy(role: Role, scope: TenantScope) -> Document:
    """The identity policy of a role, for one tenant or for all."""
    return _document([statement for grant in GRANTS[role] for statement in grant(scope)])


_KEY_ADMINISTRATION = (
    "kms:CancelKeyDeletion",
    "kms:CreateAlias",
    "kms:DeleteAlias",
    "kms:DescribeKey",
    "kms:DisableKey",
    "kms:EnableKey",
    "kms:EnableKeyRotation",
    "kms:GetKeyPolicy",
    "kms:GetKeyRotationStatus",
    "kms:PutKeyPolicy",
    "kms:ScheduleKeyDeletion",
    "kms:UpdateAlias",
)


def key_policy(scope: TenantScope, users: Sequence[str]) -> Document:
    """The policy of a tenant's key: `users` may use it, only with the tenant as encryption context."""
    use = ["kms:Decrypt", "kms:GenerateDataKey"]
    root = f"arn:{scope.deployment.partition}:iam::{scope.deployment.account}:root"
    statements: list[Document] = [
        # The account must be able to administer the key, or it can become unmanageable.
        allow("AdministerKey", _KEY_ADMINISTRATION, "*") | {"Principal": {"AWS": root}},
        allow("UseKeyForTenant", use, "*", {"StringEquals": {CONTEXT: scope.tenant}})
        | {"Principal": {"AWS": list(users)}},
        {
            "Sid": "DenyOtherTenants",
            "Effect": "Deny",
            "Principal": "*",
            "Action": [*use, "kms:Encrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo"],
            "Resource": "*",
            "Condition": {"StringNotEquals": {CONTEXT: scope.tenant}},
        },
    ]
    return _document(statements)


def bucket_policy(deployment: Deployment) -> Document:
    """What the bucket denies to every caller, whatever the caller's own policy allows."""
    bucket = deployment.bucket_arn
    return _document(
        [
            _deny(
                "DenyPlainHttp", "s3:*", [bucket, f"{bucket}/*"], {"Bool": {"aws:SecureTransport": "false"}}
            ),
            # Only if the header is present: UploadPart never sends it and would always be denied.
            _deny(
                "DenyOtherEncryption",
                "s3:PutObject",
                f"{bucket}/{deployment.prefix}*",
                {"Null": {_ENCRYPTION: "false"}, "StringNotEquals": {_ENCRYPTION: "aws:kms"}},
            ),
        ]
    )


def lifecycle(deployment: Deployment) -> Document:
    """A fallback for Filmgate's own sweep: S3 aborts unfinished uploads and deletes old versions."""
    return {
        "Rules": [
            {
                "ID": "filmgate-orphans",
                "Status": "Enabled",
                "Filter": {"Prefix": deployment.prefix},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
                "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
                "Expiration": {"ExpiredObjectDeleteMarker": True},
            }
        ]
    }


def region_policy(regions: Sequence[str]) -> Document:
    """Denies every call to another region, whatever other policies of the role allow."""
    return _document(
        [
            {
                "Sid": "DenyOtherRegions",
                "Effect": "Deny",
                "Action": "*",
                "Resource": "*",
                "Condition": {"StringNotEquals": {"aws:RequestedRegion": sorted(set(regions))}},
            }
        ]
    )


def _deny(sid: str, action: str, resource: str | Sequence[str], when: Conditions) -> Document:
    return {
        "Sid": sid,
        "Effect": "Deny",
        "Principal": "*",
        "Action": action,
        "Resource": resource,
        "Condition": when,
    }


def _document(statements: Sequence[Document]) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}
