"""IAM, key and bucket policies: for each role and tenant, what it needs and nothing else. Pure values.

Allows name their resources; conditions are only those AWS lists for the action (docs/aws.md has sources).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from filmgate.aws.place import Place
from filmgate.aws.roles import Role
from filmgate.aws.tenant_key import CONTEXT_KEY, KeyTemplate

Document = dict[str, object]
Conditions = Mapping[str, Mapping[str, str | Sequence[str]]]

VERSION = "2012-10-17"
# In place of a tenant's name: whoever assumes the role says whose work it does, in a session tag.
TENANT_TAG = "${aws:PrincipalTag/tenant}"
CONTEXT = f"kms:EncryptionContext:{CONTEXT_KEY}"
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
_ENCRYPTION = "s3:x-amz-server-side-encryption"


@dataclass(frozen=True, slots=True)
class Estate:
    """What the policies are about: one bucket, one set of keys, in one account and region."""

    place: Place
    account: str
    region: str
    key: KeyTemplate
    has_kms_keyring: bool = True
    staging: Place | None = None
    queues: tuple[str, ...] = ()  # names of SQS queues, dead letters included; `*` for a model's name
    models: Place | None = None

    @property
    def partition(self) -> str:
        return next((name for start, name in _PARTITIONS.items() if self.region.startswith(start)), "aws")

    @property
    def s3_service(self) -> str:
        """S3 as `kms:ViaService` names it: with its region."""
        suffix = ".cn" if self.partition == "aws-cn" else ""
        return f"s3.{self.region}.amazonaws.com{suffix}"

    @property
    def bucket_arn(self) -> str:
        return f"arn:{self.partition}:s3:::{self.place.bucket}"

    @property
    def prefix(self) -> str:
        return self.place.prefix

    def role_arn(self, role: Role) -> str:
        return f"arn:{self.partition}:iam::{self.account}:role/filmgate-{role}"


@dataclass(frozen=True, slots=True)
class Scope:
    """An estate as one tenant sees it, or all of them (`*`)."""

    estate: Estate
    tenant: str = "*"

    def objects(self, part: str = "*") -> str:
        return f"{self.estate.bucket_arn}/{self.estate.prefix}{self.tenant}/{part}"

    @property
    def listing(self) -> str:
        """The prefixes that may be listed."""
        return f"{self.estate.prefix}*" if self.tenant == "*" else f"{self.estate.prefix}{self.tenant}/*"

    @property
    def keys(self) -> str:
        """The ARN of the tenant's key; of every key where an alias, in a condition, says which."""
        where = f"arn:{self.estate.partition}:kms:{self.estate.region}:{self.estate.account}"
        name = self._key_name
        if name.startswith("arn:") and ":key/" in name:
            return name
        return f"{where}:key/*" if self.alias else f"{where}:key/{name}"

    @property
    def alias(self) -> str:
        """The alias of the tenant's key, if that is how it is named."""
        _, found, alias = self._key_name.rpartition("alias/")
        return found + alias if found else ""

    @property
    def _key_name(self) -> str:
        return self.estate.key.text.replace("{tenant}", self.tenant)


def allow(
    sid: str, actions: Sequence[str], resource: str | Sequence[str], when: Conditions | None = None
) -> Document:
    """One statement that allows."""
    statement: Document = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resource}
    return statement | ({"Condition": when} if when else {})


def _list(scope: Scope) -> list[Document]:
    bucket = scope.estate.bucket_arn
    return [
        allow(
            "ListObjects",
            ["s3:ListBucket", "s3:ListBucketVersions"],
            bucket,
            {"StringLike": {"s3:prefix": scope.listing}},
        ),
        # S3 offers no condition on the prefix for this one: names of unfinished uploads can be seen.
        allow("FindUnfinishedUploads", ["s3:ListBucketMultipartUploads"], bucket),
    ]


def _read(scope: Scope) -> list[Document]:
    return [allow("ReadObjects", ["s3:GetObject"], scope.objects())]


def _remove(scope: Scope) -> list[Document]:
    actions = ["s3:DeleteObject", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload"]
    return [allow("RemoveObjects", actions, scope.objects())]


def _write(scope: Scope) -> list[Document]:
    return [allow("WriteObjects", ["s3:PutObject"], scope.objects())]


def _write_sources(scope: Scope) -> list[Document]:
    """The API stores what was uploaded to it, and nothing else."""
    return [allow("WriteSources", ["s3:PutObject"], scope.objects("*/source"))]


def _keys_through_s3(scope: Scope) -> list[Document]:
    via = {"kms:ViaService": scope.estate.s3_service}
    # A multipart upload is put together by S3 with Decrypt.
    return [_use_key("UseKeyThroughS3", ["kms:GenerateDataKey", "kms:Decrypt"], scope, via)]


def _seal(scope: Scope) -> list[Document]:
    return _directly(scope, ["kms:GenerateDataKey", "kms:Decrypt"])


def _unseal(scope: Scope) -> list[Document]:
    return _directly(scope, ["kms:Decrypt"])


def _directly(scope: Scope, actions: list[str]) -> list[Document]:
    """For what we encrypt ourselves: prompts in the database."""
    return [_use_key("UseKeyForPrompts", actions, scope, {})] if scope.estate.has_kms_keyring else []


def _use_key(sid: str, actions: list[str], scope: Scope, exact: Mapping[str, str]) -> Document:
    conditions: dict[str, dict[str, str]] = {"StringEquals": dict(exact)}
    if scope.tenant == "*":
        conditions["Null"] = {CONTEXT: "false"}
    else:
        conditions["StringEquals"][CONTEXT] = scope.tenant
    if scope.alias:
        conditions["ForAnyValue:StringLike"] = {"kms:ResourceAliases": scope.alias}
    return allow(sid, actions, scope.keys, {name: rule for name, rule in conditions.items() if rule})


def _generate_elsewhere(scope: Scope) -> list[Document]:
    """A managed provider: it writes to a staging bucket, from which the clip is moved to the tenant's."""
    estate = scope.estate
    # Providers live in regions of their own.
    models = f"arn:{estate.partition}:bedrock:*::foundation-model/*"
    invocations = f"arn:{estate.partition}:bedrock:*:{estate.account}:async-invoke/*"
    statements = [
        allow("StartProviderJobs", ["bedrock:InvokeModel"], models),
        allow("WatchProviderJobs", ["bedrock:GetAsyncInvoke", "bedrock:ListAsyncInvokes"], invocations),
    ]
    if estate.staging is not None:
        staged = f"arn:{estate.partition}:s3:::{estate.staging.bucket}/{estate.staging.prefix}*"
        moves = ["s3:PutObject", "s3:GetObject", "s3:DeleteObject"]
        statements.append(allow("MoveStagedClips", moves, staged))
    return statements


def _wake(scope: Scope) -> list[Document]:
    """Messages that say there is work. Whoever sends also sweeps, so the API receives dead letters too."""
    estate = scope.estate
    where = f"arn:{estate.partition}:sqs:{estate.region}:{estate.account}"
    actions = ["SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"]
    looks = ["GetQueueUrl", "GetQueueAttributes"]
    named = [f"sqs:{action}" for action in (*actions, *looks)]
    return (
        [allow("WakeWorkers", named, [f"{where}:{name}" for name in estate.queues])] if estate.queues else []
    )


def _pull_models(scope: Scope) -> list[Document]:
    estate = scope.estate
    if estate.models is None:
        return []
    bucket = f"arn:{estate.partition}:s3:::{estate.models.bucket}"
    listed: Conditions = {"StringLike": {"s3:prefix": f"{estate.models.prefix}*"}}
    return [
        allow("PullModels", ["s3:GetObject"], f"{bucket}/{estate.models.prefix}*"),
        # Without it S3 calls a model that is not there forbidden.
        allow("FindModels", ["s3:ListBucket"], bucket, listed),
    ]


def _tend(scope: Scope) -> list[Document]:
    """Look after the bucket and the tenants' keys, without a way to read what they protect."""
    settings = ["s3:GetBucketVersioning", "s3:GetEncryptionConfiguration", "s3:GetLifecycleConfiguration"]
    alias = f"arn:{scope.estate.partition}:kms:{scope.estate.region}:{scope.estate.account}:{scope.alias}"
    tending = ["kms:DescribeKey", "kms:DisableKey", "kms:EnableKeyRotation", "kms:ScheduleKeyDeletion"]
    of_alias: Conditions = {"ForAnyValue:StringLike": {"kms:ResourceAliases": scope.alias}}
    changes = ["s3:PutLifecycleConfiguration", "s3:PutEncryptionConfiguration", "s3:PutBucketVersioning"]
    statements = [
        allow("TendBucket", [*settings, *changes], scope.estate.bucket_arn),
        allow("TendKeys", tending, scope.keys, of_alias if scope.alias else {}),
        allow("MakeKeys", ["kms:CreateKey"], "*", {"StringEquals": {"kms:KeySpec": "SYMMETRIC_DEFAULT"}}),
    ]
    if scope.alias:
        naming = ["kms:CreateAlias", "kms:DeleteAlias"]
        statements.append(allow("NameKeys", naming, [alias, scope.keys]))
    return statements


Grant = Callable[[Scope], list[Document]]
_WORK: tuple[Grant, ...] = (_list, _read, _write, _remove, _keys_through_s3, _unseal, _wake)
GRANTS: Mapping[Role, tuple[Grant, ...]] = {
    Role.API: (_list, _read, _write_sources, _remove, _keys_through_s3, _seal, _wake),
    Role.WORKER: (*_WORK, _pull_models),
    Role.MANAGED: (*_WORK, _generate_elsewhere),
    Role.OPERATOR: (_list, _tend),
}


def role_policy(role: Role, scope: Scope) -> Document:
    """The identity policy of one role, for one tenant or for all."""
    return _document([statement for grant in GRANTS[role] for statement in grant(scope)])


_ADMINISTRATION = (
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


def key_policy(scope: Scope, users: Sequence[str]) -> Document:
    """The policy of a tenant's own key: who may use it, and never without the tenant as context."""
    use = ["kms:Decrypt", "kms:GenerateDataKey"]
    root = f"arn:{scope.estate.partition}:iam::{scope.estate.account}:root"
    statements: list[Document] = [
        # Without a way for the account to administer it a key can be lost for good.
        allow("AdministerKey", _ADMINISTRATION, "*") | {"Principal": {"AWS": root}},
        allow("UseKeyForTenant", use, "*", {"StringEquals": {CONTEXT: scope.tenant}})
        | {"Principal": {"AWS": list(users)}},
        {
            "Sid": "NeverForAnotherTenant",
            "Effect": "Deny",
            "Principal": "*",
            "Action": [*use, "kms:Encrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo"],
            "Resource": "*",
            "Condition": {"StringNotEquals": {CONTEXT: scope.tenant}},
        },
    ]
    return _document(statements)


def bucket_policy(estate: Estate) -> Document:
    """What nobody may do to the bucket, whatever their own policy says."""
    everything = [estate.bucket_arn, f"{estate.bucket_arn}/*"]
    return _document(
        [
            _deny("OnlyEncryptedConnections", "s3:*", everything, {"Bool": {"aws:SecureTransport": "false"}}),
            # Only where the header is sent: parts of an upload never carry it and would all be refused.
            _deny(
                "OnlyTenantKeys",
                "s3:PutObject",
                f"{estate.bucket_arn}/{estate.prefix}*",
                {"Null": {_ENCRYPTION: "false"}, "StringNotEquals": {_ENCRYPTION: "aws:kms"}},
            ),
        ]
    )


def lifecycle(estate: Estate) -> Document:
    """Belt and braces behind our own sweep: S3 drops unfinished uploads and hidden versions by itself."""
    return {
        "Rules": [
            {
                "ID": "filmgate-leftovers",
                "Status": "Enabled",
                "Filter": {"Prefix": estate.prefix},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
                "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
                "Expiration": {"ExpiredObjectDeleteMarker": True},
            }
        ]
    }


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
