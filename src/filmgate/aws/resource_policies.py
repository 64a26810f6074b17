"""Policies of keys and buckets, which bind every caller, and the lifecycle of the bucket of clips."""

from collections.abc import Sequence

from filmgate.aws.deployment import Deployment, TenantScope
from filmgate.aws.statements import Document, allow, deny_plain_http, policy_document, principal_statement
from filmgate.aws.tenant_key import CONTEXT_KEY
from filmgate.aws.tenant_sessions import TAG_KEY

CONTEXT = f"kms:EncryptionContext:{CONTEXT_KEY}"
_ENCRYPTION = "s3:x-amz-server-side-encryption"
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
    every_use = [*use, "kms:Encrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
    statements = [
        # The account must be able to administer the key, or it can become unmanageable.
        allow("AdministerKey", _KEY_ADMINISTRATION, "*") | {"Principal": {"AWS": scope.deployment.root_arn}},
        allow("UseKeyForTenant", use, "*", {"StringEquals": {CONTEXT: scope.tenant}})
        | {"Principal": {"AWS": list(users)}},
        principal_statement(
            "Deny", "DenyOtherTenants", "*", every_use, "*", {"StringNotEquals": {CONTEXT: scope.tenant}}
        ),
    ]
    return policy_document(statements)


def tenant_trust(deployment: Deployment, users: Sequence[str]) -> Document:
    """Who may assume a by-tag role: `users`, only with the tag `tenant` and no other."""
    statement = principal_statement(
        "Allow",
        "AssumeForOneTenant",
        {"AWS": list(users)},
        ["sts:AssumeRole", "sts:TagSession"],
        when={
            "StringLike": {f"aws:RequestTag/{TAG_KEY}": "?*"},
            "ForAllValues:StringEquals": {"aws:TagKeys": [TAG_KEY]},
            "StringEquals": {"aws:PrincipalAccount": deployment.account},
        },
    )
    return policy_document([statement])


def bucket_policy(deployment: Deployment) -> Document:
    """What the bucket denies to every caller, whatever the caller's own policy allows."""
    bucket = deployment.bucket_arn()
    return policy_document(
        [
            deny_plain_http(bucket),
            # Only if the header is present: UploadPart never sends it and would always be denied.
            principal_statement(
                "Deny",
                "DenyOtherEncryption",
                "*",
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
