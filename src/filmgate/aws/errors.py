"""Turns what boto3 raises into one value, AwsFailure, which each package maps to its own errors."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from filmgate.errors import FilmgateError


class FailureKind(StrEnum):
    """What went wrong, as far as a caller reacts to it."""

    DENIED = "denied"  # the credentials lack a permission
    NOT_FOUND = "not_found"  # the object does not exist
    NO_RESOURCE = "no_resource"  # the bucket, queue or model does not exist
    KEY = "key"  # the KMS key is disabled, deleted, unknown or not the one this was encrypted with
    THROTTLED = "throttled"
    CREDENTIALS = "credentials"  # missing, expired or rejected
    CHECKSUM = "checksum"  # the bytes received do not match their checksum
    UNREACHABLE = "unreachable"
    OTHER = "other"


_CODES = {
    FailureKind.DENIED: "403 AccessDenied AccessDeniedException AllAccessDisabled "
    "AWS.SimpleQueueService.AccessDenied",
    FailureKind.NOT_FOUND: "404 NoSuchKey NoSuchVersion NotFound",
    FailureKind.NO_RESOURCE: "AWS.SimpleQueueService.NonExistentQueue NoSuchBucket QueueDoesNotExist "
    "ResourceNotFoundException",
    FailureKind.KEY: "DisabledException IncorrectKeyException InvalidCiphertextException "
    "InvalidKeyUsageException KMSInvalidStateException NotFoundException",
    FailureKind.THROTTLED: "RequestThrottled ServiceQuotaExceededException SlowDown Throttling "
    "ThrottlingException TooManyRequestsException",
    FailureKind.CREDENTIALS: "ExpiredToken ExpiredTokenException InvalidAccessKeyId InvalidClientTokenId "
    "InvalidSignatureException InvalidToken SignatureDoesNotMatch UnrecognizedClientException",
}
_KIND_OF_CODE = {code: kind for kind, codes in _CODES.items() for code in codes.split()}
# The IAM action of an operation, where the two names differ.
PERMISSIONS: Mapping[str, str] = {
    "HeadObject": "s3:GetObject",
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "ListObjectVersions": "s3:ListBucketVersions",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    # Filmgate always deletes by version, so that no delete marker hides an older version.
    "DeleteObjects": "s3:DeleteObjectVersion",
    "GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
    "SendMessageBatch": "sqs:SendMessage",
    "StartAsyncInvoke": "bedrock:InvokeModel",
}
_NOT_AUTHORIZED = re.compile(r"not authorized to perform:? (?P<action>[a-z0-9-]+:[A-Za-z]+)")
_RESOURCE = re.compile(r"on resource:? \"?(?P<resource>arn:[^\s\"]+)")


@dataclass(frozen=True, slots=True)
class AwsFailure:
    """A failed AWS call. It keeps nothing of the text AWS sent, which may quote the request."""

    service: str
    kind: FailureKind
    code: str  # AWS's error code, or the name of boto3's exception when there was no response
    operation: str = ""
    permission: str = ""
    resource: str = ""

    @classmethod
    def from_code(cls, service: str, operation: str, code: str, text: str = "") -> "AwsFailure":
        """The failure in an error response. `text` is searched for the permission and the resource only."""
        # S3 puts `KMS.` in front of the codes of KMS.
        kind = _KIND_OF_CODE.get(code.removeprefix("KMS."), FailureKind.OTHER)
        action, resource = _NOT_AUTHORIZED.search(text), _RESOURCE.search(text)
        permission = PERMISSIONS.get(operation, f"{service.lower()}:{operation}")
        return cls(
            service,
            kind,
            code,
            operation,
            permission=action["action"] if action else permission,
            resource=resource["resource"] if resource else "",
        )

    @property
    def message(self) -> str:
        """One line for an operator."""
        match self.kind:
            case FailureKind.DENIED:
                where = f" on {self.resource}" if self.resource else ""
                return f"{self.service} denied {self.operation}: {self.permission} is missing{where}"
            case FailureKind.CREDENTIALS if self.operation:
                return f"{self.service} rejected the AWS credentials: {self.code}"
            case FailureKind.CREDENTIALS:
                return f"no AWS credentials ({self.code}); set AWS_PROFILE or give this machine a role"
            case FailureKind.UNREACHABLE:
                return f"{self.service} cannot be reached: {self.code}"
            case FailureKind.CHECKSUM:
                return f"{self.service} sent bytes that do not match their checksum"
        return f"{self.service} {self.operation or 'call'} failed: {self.code}"


def read_failure(service: str, error: BaseException | None) -> AwsFailure | None:
    """The failure in an exception of boto3; None for any other exception."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    if isinstance(error, Boto3Error) and error.__context__ is not None:
        error = error.__context__  # `upload_file` wraps the error of its request
    if isinstance(error, ClientError):
        response = error.response.get("Error", {})
        code, text = str(response.get("Code", "Unknown")), str(response.get("Message", ""))
        return AwsFailure.from_code(service, error.operation_name, code, text)
    if isinstance(error, BotoCoreError | Boto3Error):
        return AwsFailure(service, _kind_without_response(error), type(error).__name__)
    return None


@contextmanager
def aws_errors(service: str, to_error: Callable[[AwsFailure], FilmgateError | None]) -> Iterator[None]:
    """Raises `to_error(failure)` in place of what boto3 raises in the block. Other exceptions pass unchanged.

    When `to_error` returns None the block ends without an error.
    """
    try:
        yield
    except Exception as exc:
        failure = read_failure(service, exc)
        if failure is None:
            raise
        if (error := to_error(failure)) is not None:
            raise error from exc


def _kind_without_response(error: Exception) -> FailureKind:
    from botocore import exceptions

    kinds = {
        FailureKind.CREDENTIALS: (exceptions.NoCredentialsError, exceptions.PartialCredentialsError),
        FailureKind.CHECKSUM: (exceptions.FlexibleChecksumError,),
        FailureKind.UNREACHABLE: (
            exceptions.HTTPClientError,
            exceptions.ConnectionError,
            exceptions.IncompleteReadError,
        ),
    }
    return next((kind for kind, types in kinds.items() if isinstance(error, types)), FailureKind.OTHER)
