"""Least-privilege IAM policies for each role and tenant, as pure values.

Every Allow names its resources, and AWS lists every condition key for its action (docs/aws.md).
"""

from collections.abc import Callable, Mapping, Sequence

from filmgate.aws.deployment import BUCKETS_ALIAS, TENANT_TAG, Deployment, Role, TenantScope, alias_of
from filmgate.aws.resource_policies import CONTEXT
from filmgate.aws.s3_location import S3Location
from filmgate.aws.statements import Conditions, Document, allow, policy_document

Grant = Callable[[TenantScope], list[Document]]
_READ_AND_WRITE = ("kms:Decrypt", "kms:GenerateDataKey")


def _list(scope: TenantScope) -> list[Document]:
    bucket = scope.deployment.bucket_arn()
    return [
        # Without ListBucket, S3 answers 403 instead of 404 for an object that does not exist.
        allow(
            "ListObjects",
            ["s3:ListBucket", "s3:ListBucketVersions"],
            bucket,
            {"StringLike": {"s3:prefix": scope.list_prefix}},
        ),
        # S3 has no prefix condition for this action: the role sees the names of all unfinished uploads.
        allow("ListUnfinishedUploads", ["s3:ListBucketMultipartUploads"], bucket),
    ]


def _on_objects(sid: str, *actions: str, part: str = "*") -> Grant:
    return lambda scope: [allow(sid, actions, scope.objects(part))]


_read = _on_objects("ReadObjects", "s3:GetObject")
_write = _on_objects("WriteObjects", "s3:PutObject")
# The API stores uploads only.
_write_sources = _on_objects("WriteSources", "s3:PutObject", part="*/source")
# Filmgate deletes versions by their ids, so it never needs s3:DeleteObject, which leaves a marker.
_delete = _on_objects("DeleteObjects", "s3:DeleteObjectVersion", "s3:AbortMultipartUpload")


def _use_key_through_s3(scope: TenantScope) -> list[Document]:
    # S3 needs Decrypt to complete a multipart upload.
    return [_use_key("UseKeyThroughS3", _READ_AND_WRITE, scope, scope.deployment.s3_service)]


def _seal_prompts(scope: TenantScope) -> list[Document]:
    return _use_key_for_prompts(scope, _READ_AND_WRITE)


def _open_prompts(scope: TenantScope) -> list[Document]:
    return _use_key_for_prompts(scope, ["kms:Decrypt"])


def _use_key_for_prompts(scope: TenantScope, actions: Sequence[str]) -> list[Document]:
    """Filmgate itself encrypts the prompts in the database, with data keys from KMS."""
    return [_use_key("UseKeyForPrompts", actions, scope)] if scope.deployment.has_kms_keyring else []


def _use_key(sid: str, actions: Sequence[str], scope: TenantScope, service: str = "") -> Document:
    """Use of the tenants' keys by a service for this role, or by the role itself."""
    conditions: dict[str, dict[str, str]] = {"StringEquals": {}, "Null": {}}
    if service:
        conditions["StringEquals"]["kms:ViaService"] = service
    else:
        conditions["Null"]["kms:ViaService"] = "true"
    if scope.tenant == "*":
        conditions["Null"][CONTEXT] = "false"
    else:
        conditions["StringEquals"][CONTEXT] = scope.tenant
    conditions = {name: rule for name, rule in conditions.items() if rule}
    return allow(sid, actions, scope.keys, conditions | _with_alias(scope.alias))


def _with_alias(alias: str) -> dict[str, dict[str, str]]:
    """The condition that a key has this alias; empty for a key that is named by id or ARN."""
    return {"ForAnyValue:StringLike": {"kms:ResourceAliases": alias}} if alias else {}


def _use_provider(scope: TenantScope) -> list[Document]:
    """Bedrock writes clips to a staging bucket, from which the worker moves them to the tenant's prefix."""
    deployment = scope.deployment
    if not deployment.bedrock_model:
        return []
    where = f"arn:{deployment.partition}:bedrock:{deployment.bedrock_region}"
    models = f"{where}::foundation-model/{deployment.bedrock_model}"
    invocations = f"{where}:{deployment.account}:async-invoke/*"
    statements = [
        # StartAsyncInvoke asks for InvokeModel.
        allow("StartProviderJobs", ["bedrock:InvokeModel", "bedrock:GetFoundationModel"], models),
        allow("ReadProviderJobs", ["bedrock:GetAsyncInvoke", "bedrock:ListAsyncInvokes"], invocations),
    ]
    if deployment.staging is not None:
        statements += _move_staged_clips(deployment, deployment.staging)
        # Without a key of its own, the staging bucket of the template has the key of all buckets.
        is_here = deployment.bedrock_region in {"*", deployment.region}
        if key := deployment.staging_key or (BUCKETS_ALIAS if is_here else ""):
            statements.append(_use_bucket_key("UseStagingKey", _READ_AND_WRITE, deployment, key))
    return statements


def _move_staged_clips(deployment: Deployment, staging: S3Location) -> list[Document]:
    bucket, prefix = deployment.bucket_arn(staging), staging.prefix
    actions = ["s3:PutObject", "s3:GetObject", "s3:DeleteObjectVersion"]
    # The doctor lists the prefix without its trailing slash.
    listed: Conditions = {"StringLike": {"s3:prefix": sorted({prefix.rstrip("/"), f"{prefix}*"})}}
    return [
        allow("MoveStagedClips", actions, f"{bucket}/{prefix}*"),
        allow("ListStagedClips", ["s3:ListBucketVersions"], bucket, listed),
    ]


_SENDER_ACTIONS = ("SendMessage", "ReceiveMessage", "DeleteMessage", "GetQueueUrl", "GetQueueAttributes")


def _send_wakeups(scope: TenantScope) -> list[Document]:
    """SQS messages that wake workers. Every sender also sweeps, so it receives dead letters."""
    return _use_queues(scope, _SENDER_ACTIONS)


def _receive_wakeups(scope: TenantScope) -> list[Document]:
    """A worker hides the message of its job, and sends it again when it hands the job back."""
    return _use_queues(scope, [*_SENDER_ACTIONS, "ChangeMessageVisibility"])


def _use_queues(scope: TenantScope, actions: Sequence[str]) -> list[Document]:
    deployment = scope.deployment
    where = f"arn:{deployment.partition}:sqs:{deployment.region}:{deployment.account}"
    queues = [f"{where}:{name}" for name in deployment.queues]
    return [allow("WakeWorkers", [f"sqs:{action}" for action in actions], queues)] if queues else []


def _classify_prompts(scope: TenantScope) -> list[Document]:
    """Comprehend has no resources for this action."""
    actions = ["comprehend:DetectToxicContent"]
    return [allow("ClassifyPrompts", actions, "*")] if scope.deployment.has_comprehend else []


def _sign_audit(scope: TenantScope) -> list[Document]:
    """The server signs the heads of the audit log, for all tenants, so a session of one tenant does not."""
    key = scope.deployment.audit_key
    if not key or scope.tenant == TENANT_TAG:
        return []
    actions = ["kms:Sign", "kms:GetPublicKey"]
    return [allow("SignAudit", actions, scope.deployment.key_arn(key), _with_alias(alias_of(key)))]


def _anchor_audit(scope: TenantScope) -> list[Document]:
    """The role cannot delete or replace an anchor; Object Lock denies it as well."""
    deployment, anchor = scope.deployment, scope.deployment.audit_anchor
    if anchor is None or scope.tenant == TENANT_TAG:
        return []
    actions = ["s3:PutObject", "s3:PutObjectRetention", "s3:GetObject"]
    return [
        *_use_prefix("AnchorAudit", "ListAnchors", actions, deployment, anchor),
        _use_bucket_key("UseAnchorKey", _READ_AND_WRITE, deployment, BUCKETS_ALIAS),
    ]


def _pull_models(scope: TenantScope) -> list[Document]:
    deployment = scope.deployment
    if deployment.models is None:
        return []
    return [
        *_use_prefix("UseModels", "ListModels", ["s3:GetObject"], deployment, deployment.models),
        _use_bucket_key("UseModelsKey", ["kms:Decrypt"], deployment, deployment.models_key),
    ]


def _push_models(scope: TenantScope) -> list[Document]:
    """Nothing deletes a model. An upload that fails is aborted."""
    deployment = scope.deployment
    if deployment.models is None:
        return []
    checks = ["s3:GetBucketVersioning", "s3:GetEncryptionConfiguration"]
    actions = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    return [
        *_use_prefix("UseModels", "ListModels", actions, deployment, deployment.models),
        allow("CheckModelsBucket", checks, deployment.bucket_arn(deployment.models)),
        _use_bucket_key("UseModelsKey", _READ_AND_WRITE, deployment, deployment.models_key),
    ]


def _use_prefix(
    sid: str, list_sid: str, actions: Sequence[str], deployment: Deployment, location: S3Location
) -> list[Document]:
    bucket, objects = deployment.bucket_arn(location), f"{location.prefix}*"
    return [
        allow(sid, actions, f"{bucket}/{objects}"),
        # Without ListBucket, S3 answers 403 instead of 404 for an object that does not exist.
        allow(list_sid, ["s3:ListBucket"], bucket, {"StringLike": {"s3:prefix": objects}}),
    ]


def _use_bucket_key(sid: str, actions: Sequence[str], deployment: Deployment, key: str) -> Document:
    """A key that S3 uses for us, without a tenant in the encryption context."""
    region = key.split(":")[3] if key.startswith("arn:") else deployment.region
    through_s3 = {"kms:ViaService": deployment.s3_service.replace(deployment.region, region)}
    conditions = {"StringEquals": through_s3} | _with_alias(alias_of(key))
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
    statements = [
        allow("ManageBucket", bucket_actions, deployment.bucket_arn()),
        allow("ManageKeys", key_actions, scope.keys, _with_alias(scope.alias)),
        allow("CreateKeys", ["kms:CreateKey"], "*", {"StringEquals": {"kms:KeySpec": "SYMMETRIC_DEFAULT"}}),
    ]
    if scope.alias:
        alias = f"arn:{deployment.partition}:kms:{deployment.region}:{deployment.account}:{scope.alias}"
        actions = ["kms:CreateAlias", "kms:DeleteAlias"]
        statements.append(allow("ManageAliases", actions, [alias, scope.keys]))
    return statements


_WORK: tuple[Grant, ...] = (
    _list,
    _read,
    _write,
    _delete,
    _use_key_through_s3,
    _open_prompts,
    _receive_wakeups,
)
GRANTS: Mapping[Role, tuple[Grant, ...]] = {
    Role.API: (
        _list,
        _read,
        _write_sources,
        _delete,
        _use_key_through_s3,
        _seal_prompts,
        _send_wakeups,
        _classify_prompts,
        _sign_audit,
        _anchor_audit,
    ),
    Role.WORKER: (*_WORK, _pull_models),
    Role.MANAGED: (*_WORK, _use_provider),
    # An operator deletes what a tenant stored, but cannot read it.
    Role.OPERATOR: (_list, _delete, _administer, _push_models),
}


def role_policy(role: Role, scope: TenantScope) -> Document:
    """The identity policy of a role, for one tenant or for all."""
    return policy_document([statement for grant in GRANTS[role] for statement in grant(scope)])


def region_policy(regions: Sequence[str]) -> Document:
    """Denies every call to another region, whatever other policies of the role allow."""
    return policy_document(
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
