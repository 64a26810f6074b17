"""Records boto3's calls, and lists the permissions that AWS requires for each."""

from dataclasses import dataclass

from botocore.client import BaseClient
from botocore.exceptions import ClientError

from deploy.tests.guarded_aws import (
    ACCOUNT,
    AUDIT,
    AUDIT_ALIAS,
    PROVIDER_REGION,
    REGION,
    STAGING,
    STAGING_KEY,
    WEIGHTS,
)

TENANT = "acme"
TENANT_ALIAS = f"alias/filmgate-{TENANT}"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"
# Permissions on an object, and on a bucket, by S3 operation (Amazon S3 API reference, "Permissions").
ON_OBJECT = {
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
}
ON_BUCKET = {
    "ListObjectsV2": "s3:ListBucket",
    "ListObjectVersions": "s3:ListBucketVersions",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "GetBucketVersioning": "s3:GetBucketVersioning",
    "PutBucketVersioning": "s3:PutBucketVersioning",
    "GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "PutBucketEncryption": "s3:PutEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "s3:PutLifecycleConfiguration",
}
BUCKET_ALIASES = {WEIGHTS: "alias/filmgate-models", AUDIT: "alias/filmgate/buckets"}
# What S3 asks of KMS for the caller, when the object is encrypted with a KMS key.
KMS_FOR_S3 = {
    "PutObject": ["kms:GenerateDataKey"],
    "CreateMultipartUpload": ["kms:GenerateDataKey"],
    "UploadPart": ["kms:Decrypt", "kms:GenerateDataKey"],
    "CompleteMultipartUpload": ["kms:Decrypt"],
    "GetObject": ["kms:Decrypt"],
    "HeadObject": ["kms:Decrypt"],
}
# Operations whose permission has another name.
ACTIONS = {"SendMessageBatch": "SendMessage", "StartAsyncInvoke": "InvokeModel"}


@dataclass
class Call:
    """One call of a boto3 client. `is_denied`: moto refused it."""

    service: str
    operation: str
    region: str
    parameters: dict
    is_denied: bool = False

    @property
    def target(self):
        return self.operation, self.parameters.get("Bucket", "")


@dataclass(frozen=True)
class Need:
    """One permission that a call needs."""

    action: str
    resource: str
    context: tuple = ()


def record_calls(monkeypatch):
    """The list that receives all calls from now on. They are made as usual."""
    calls, real = [], BaseClient._make_api_call

    def record(client, operation, parameters):
        meta = client.meta
        call = Call(meta.service_model.service_name, operation, meta.region_name, parameters)
        calls.append(call)
        try:
            return real(client, operation, parameters)
        except ClientError as exc:
            call.is_denied = exc.response["Error"]["Code"] in ("AccessDenied", "403")
            raise

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    return calls


def needs_of(calls):
    return {
        Need(need.action, need.resource, (*need.context, ("aws:RequestedRegion", call.region)))
        for call in calls
        for need in _READERS[call.service](call)
    }


def _need(action, resource, **context):
    return Need(action, resource, tuple(sorted(context.items())))


def _s3_needs(call):
    given = call.parameters
    bucket = f"arn:aws:s3:::{given['Bucket']}"
    if call.operation in ON_BUCKET:
        yield _need(ON_BUCKET[call.operation], bucket, **{"s3:prefix": given.get("Prefix", "")})
    elif call.operation == "DeleteObjects":
        for one in given["Delete"]["Objects"]:
            action = "s3:DeleteObjectVersion" if "VersionId" in one else "s3:DeleteObject"
            yield _need(action, f"{bucket}/{one['Key']}")
    else:
        yield _need(ON_OBJECT[call.operation], f"{bucket}/{given['Key']}")
        if "ObjectLockMode" in given:
            yield _need("s3:PutObjectRetention", f"{bucket}/{given['Key']}")
        for action in KMS_FOR_S3.get(call.operation, []):
            yield _through_s3(action, given["Bucket"])


def _through_s3(action, bucket):
    if bucket == STAGING:
        return _need(action, STAGING_KEY, **{"kms:ViaService": f"s3.{PROVIDER_REGION}.amazonaws.com"})
    context = {"kms:ViaService": f"s3.{REGION}.amazonaws.com"}
    if bucket in BUCKET_ALIASES:
        return _need(action, KEY, **context, **{"kms:ResourceAliases": BUCKET_ALIASES[bucket]})
    own = {"kms:ResourceAliases": TENANT_ALIAS, "kms:EncryptionContext:tenant": TENANT}
    return _need(action, KEY, **context, **own)


def _kms_needs(call):
    given = call.parameters
    context = {f"kms:EncryptionContext:{k}": v for k, v in given.get("EncryptionContext", {}).items()}
    action = f"kms:{call.operation}"
    if call.operation == "CreateKey":
        yield _need(action, "*", **{"kms:KeySpec": "SYMMETRIC_DEFAULT"})
        return
    if call.operation in ("CreateAlias", "DeleteAlias"):  # AWS asks for it on the alias and on the key
        yield _need(action, f"arn:aws:kms:{REGION}:{ACCOUNT}:{given['AliasName']}")
    alias = AUDIT_ALIAS if given.get("KeyId") == AUDIT_ALIAS else TENANT_ALIAS
    yield _need(action, KEY, **context, **{"kms:ResourceAliases": alias})


def _sqs_needs(call):
    name = call.parameters.get("QueueName") or call.parameters["QueueUrl"].rpartition("/")[2]
    action = ACTIONS.get(call.operation, call.operation)
    yield _need(f"sqs:{action}", f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}")


def _bedrock_needs(call):
    given, where = call.parameters, f"arn:aws:bedrock:{PROVIDER_REGION}"
    model = given.get("modelId") or given.get("modelIdentifier")
    resource = given.get("invocationArn") or (
        f"{where}::foundation-model/{model}" if model else f"{where}:{ACCOUNT}:async-invoke/*"
    )
    yield _need(f"bedrock:{ACTIONS.get(call.operation, call.operation)}", resource)
    if call.operation == "StartAsyncInvoke":  # Bedrock writes the clip with the caller's permissions
        yield _need("s3:PutObject", f"arn:aws:s3:::{STAGING}/clips/0/output.mp4")
        yield from (_through_s3(action, STAGING) for action in ("kms:GenerateDataKey", "kms:Decrypt"))


def _comprehend_needs(call):
    yield _need(f"comprehend:{call.operation}", "*")


_READERS = {
    "s3": _s3_needs,
    "kms": _kms_needs,
    "sqs": _sqs_needs,
    "bedrock": _bedrock_needs,
    "bedrock-runtime": _bedrock_needs,
    "comprehend": _comprehend_needs,
}
