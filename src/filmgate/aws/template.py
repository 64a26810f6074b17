"""One CloudFormation template for an installation, from the policies that Filmgate tests.

`filmgate aws template` prints it. Names are fixed, so that settings and policies can be written before the
stack exists; CloudFormation needs CAPABILITY_NAMED_IAM for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from filmgate.aws.deployment import BUCKETS_ALIAS, PROCESSES, Deployment, TenantScope, alias_of
from filmgate.aws.resource_policies import bucket_policy as films_bucket_policy
from filmgate.aws.resource_policies import key_policy, lifecycle
from filmgate.aws.s3_location import S3Location
from filmgate.aws.statements import Document, deny_plain_http, policy_document, principal_statement
from filmgate.aws.template_operations import (
    conditions,
    dead_letter_queue,
    operation_resources,
    outputs,
    parameters,
)
from filmgate.aws.template_roles import Cluster, dedicated_role, logical, role_resources

# Objects in this folder never expire. Old training checkpoints move to cheaper storage.
CHECKPOINT_FOLDER = "checkpoints/"
_GLACIER_DAYS = 30
_AUDIT_DAYS = 365
_DEFAULT_KEY = {"Fn::GetAtt": ["DefaultKey", "Arn"]}
_KEEP = {"DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain"}
_ROTATED = {"EnableKeyRotation": True}
# Verifying an old signature needs the key that made it, and KMS does not rotate asymmetric keys.
_SIGNING = {"KeySpec": "ECC_NIST_P256", "KeyUsage": "SIGN_VERIFY"}


@dataclass(frozen=True, slots=True)
class Stack:
    """What a template creates."""

    deployment: Deployment
    cluster: Cluster
    tenants: tuple[str, ...] = ()
    dedicated: tuple[str, ...] = ()  # tenants with their own workers
    audit_bucket: str = ""
    provider_region: str = ""


def build_template(stack: Stack) -> Document:
    """The template as a value."""
    resources: Document = {
        **_key_resources(stack),
        **_bucket_resources(stack),
        **role_resources(
            _with_dead_letters(stack.deployment), stack.cluster, stack.provider_region, stack.dedicated
        ),
        **operation_resources(stack.deployment.queues),
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "Filmgate: buckets, keys, queues, roles, image repositories, alarms and flow logs",
        "Parameters": parameters(),
        "Conditions": conditions(),
        "Resources": resources,
        "Outputs": {
            f"{role.title()}RoleArn": {"Value": {"Fn::GetAtt": [f"{role.title()}Role", "Arn"]}}
            for role in PROCESSES
        }
        | outputs(),
    }


def _with_dead_letters(deployment: Deployment) -> Deployment:
    queues = [name for queue in deployment.queues for name in (queue, dead_letter_queue(queue))]
    return replace(deployment, queues=tuple(queues))


def _key_resources(stack: Stack) -> Document:
    deployment = stack.deployment
    resources: Document = {}
    roles = [f"{role.title()}Role" for role in PROCESSES]
    for tenant in dict.fromkeys((*stack.tenants, *stack.dedicated)):
        scope = TenantScope(deployment, tenant)
        users, depends = [deployment.role_arn(role) for role in PROCESSES], list(roles)
        if tenant in stack.dedicated:
            # The shared workers do not render for this tenant.
            users[1], depends[1] = f"{users[1]}-{tenant}", dedicated_role(tenant)
        policy = key_policy(scope, users)
        # KMS rejects a policy that names roles which do not exist.
        name = f"TenantKey{logical(tenant)}"
        resources[name] = _key(f"Filmgate clips and prompts of {tenant}", policy) | {"DependsOn": depends}
        resources[f"TenantAlias{logical(tenant)}"] = _alias(scope.alias, name)
    if deployment.models is not None and alias_of(deployment.models_key):
        resources["ModelsKey"] = _key("Filmgate model weights", policy_document([_allow_account(deployment)]))
        resources["ModelsAlias"] = _alias(alias_of(deployment.models_key), "ModelsKey")
    if alias := alias_of(deployment.audit_key):
        policy = policy_document([_allow_account(deployment)])
        resources["AuditKey"] = _key("Filmgate signatures of the audit log", policy, _SIGNING)
        resources["AuditAlias"] = _alias(alias, "AuditKey")
    resources["DefaultKey"] = _key("Filmgate bucket defaults and alarms", _service_key_policy(deployment))
    resources["DefaultAlias"] = _alias(BUCKETS_ALIAS, "DefaultKey")
    return resources


def _key(description: str, policy: Document, kind: Mapping[str, object] = _ROTATED) -> Document:
    properties = {"Description": description, **kind, "KeyPolicy": policy}
    return {"Type": "AWS::KMS::Key", **_KEEP, "Properties": properties}


def _alias(name: str, key: str) -> Document:
    return {
        "Type": "AWS::KMS::Alias",
        "Properties": {"AliasName": name, "TargetKeyId": {"Ref": key}},
    }


def _allow_account(deployment: Deployment) -> Document:
    """IAM policies of the account decide who uses the key."""
    return principal_statement("Allow", "AllowAccount", {"AWS": deployment.root_arn}, "kms:*", "*")


def _service_key_policy(deployment: Deployment) -> Document:
    """CloudWatch publishes to an encrypted topic, and flow logs go to an encrypted bucket."""
    services = principal_statement(
        "Allow",
        "AllowServices",
        {"Service": ["cloudwatch.amazonaws.com", "delivery.logs.amazonaws.com"]},
        ["kms:Decrypt", "kms:GenerateDataKey"],
        "*",
        {"StringEquals": {"aws:SourceAccount": deployment.account}},
    )
    return policy_document([_allow_account(deployment), services])


def _bucket_resources(stack: Stack) -> Document:
    deployment = stack.deployment
    rules, policy = _rules(lifecycle(deployment)), films_bucket_policy(deployment)
    resources = _bucket("Films", deployment.objects, _DEFAULT_KEY, rules, policy)
    if deployment.models is not None:
        is_created = bool(alias_of(deployment.models_key))
        key = {"Fn::GetAtt": ["ModelsKey", "Arn"]} if is_created else deployment.models_key
        policy = policy_document([deny_plain_http(deployment.bucket_arn(deployment.models))])
        resources |= _bucket("Models", deployment.models, key, _model_rules(), policy)
    if deployment.staging is not None and not stack.provider_region:
        policy = policy_document([deny_plain_http(deployment.bucket_arn(deployment.staging))])
        resources |= _bucket("Staging", deployment.staging, _DEFAULT_KEY, _staging_rules(), policy)
    anchor = deployment.audit_anchor.bucket if deployment.audit_anchor is not None else ""
    default = anchor or f"filmgate-audit-{deployment.account}-{deployment.region}"
    audit = S3Location(stack.audit_bucket or default)
    return resources | _audit_resources(deployment, audit)


def _bucket(
    name: str,
    location: S3Location,
    key: object,
    rules: list[Document],
    policy: Document,
    lock: Document | None = None,
) -> Document:
    """A bucket and its policy."""
    encryption = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    properties: Document = {
        "BucketName": location.bucket,
        "VersioningConfiguration": {"Status": "Enabled"},
        "BucketEncryption": {
            "ServerSideEncryptionConfiguration": [
                {"ServerSideEncryptionByDefault": encryption, "BucketKeyEnabled": True}
            ]
        },
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "LifecycleConfiguration": {"Rules": rules},
        **(lock or {}),
    }
    attached = {"Bucket": {"Ref": f"{name}Bucket"}, "PolicyDocument": policy}
    return {
        f"{name}Bucket": {"Type": "AWS::S3::Bucket", **_KEEP, "Properties": properties},
        f"{name}BucketPolicy": {"Type": "AWS::S3::BucketPolicy", "Properties": attached},
    }


def _rules(document: Document) -> list[Document]:
    """Rules of the S3 API in the words of CloudFormation."""
    rules = document["Rules"]
    assert isinstance(rules, list)
    return [
        {
            "Id": rule["ID"],
            "Status": rule["Status"],
            "Prefix": rule["Filter"]["Prefix"],
            "AbortIncompleteMultipartUpload": rule["AbortIncompleteMultipartUpload"],
            "NoncurrentVersionExpiration": rule["NoncurrentVersionExpiration"],
            "ExpiredObjectDeleteMarker": True,
        }
        for rule in rules
    ]


def _model_rules() -> list[Document]:
    move = {"StorageClass": "GLACIER", "TransitionInDays": _GLACIER_DAYS}
    return [
        {"Id": "checkpoints", "Status": "Enabled", "Prefix": CHECKPOINT_FOLDER, "Transitions": [move]},
        {"Id": "uploads", "Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2}},
    ]


def _staging_rules() -> list[Document]:
    """Filmgate deletes what it staged; this deletes what a killed worker left."""
    return [
        {
            "Id": "staged",
            "Status": "Enabled",
            "ExpirationInDays": 7,
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        }
    ]


def _audit_resources(deployment: Deployment, audit: S3Location) -> Document:
    """Records that cannot be deleted before their time, and the flow logs of the cluster's network."""
    rules: list[Document] = [
        {
            "Id": "flow-logs",
            "Status": "Enabled",
            "Prefix": "flow-logs/",
            "ExpirationInDays": _AUDIT_DAYS + 1,
            # The bucket has versions: an expired object is only hidden until its version expires too.
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        }
    ]
    lock: Document = {
        "ObjectLockEnabled": True,
        "ObjectLockConfiguration": {
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": _AUDIT_DAYS}},
        },
    }
    arn = deployment.bucket_arn(audit)
    delivery: Document = {
        "Effect": "Allow",
        "Principal": {"Service": "delivery.logs.amazonaws.com"},
        "Condition": {"StringEquals": {"aws:SourceAccount": deployment.account}},
    }
    statements = [
        deny_plain_http(arn),
        delivery | {"Sid": "DeliverFlowLogs", "Action": "s3:PutObject", "Resource": f"{arn}/flow-logs/*"},
        delivery | {"Sid": "CheckBucket", "Action": ["s3:GetBucketAcl", "s3:ListBucket"], "Resource": arn},
    ]
    return _bucket("Audit", audit, _DEFAULT_KEY, rules, policy_document(statements), lock)
