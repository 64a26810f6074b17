"""Maps failed S3 calls to the errors of the ObjectStore port."""

from contextlib import AbstractContextManager

from filmgate.aws.errors import AwsFailure, FailureKind, aws_errors
from filmgate.errors import (
    FilmgateError,
    KeyRefused,
    ObjectCorrupt,
    ObjectNotFound,
    StoreForbidden,
    StoreUnavailable,
)

SERVICE = "S3"


def s3_errors(*, ignored_code: str = "") -> AbstractContextManager[None]:
    """Translates errors of the boto3 calls in the block; one with `ignored_code` ends the block silently.

    Do not iterate over a caller's chunks inside the block: their exceptions must stay as they are.
    """
    return aws_errors(SERVICE, lambda failure: None if failure.code == ignored_code else to_error(failure))


def to_error(failure: AwsFailure) -> FilmgateError:
    match failure.kind:
        case FailureKind.NOT_FOUND:
            return ObjectNotFound("the object does not exist")
        case FailureKind.KEY:
            return KeyRefused(f"S3 cannot use the tenant's key: {failure.message}")
        case FailureKind.DENIED:
            return StoreForbidden(failure.message, permission=failure.permission)
        case FailureKind.CHECKSUM:
            return ObjectCorrupt("the object does not match its checksum")
    return StoreUnavailable(failure.message)
