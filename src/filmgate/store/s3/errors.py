"""S3's errors as ours: what to try again, what an operator must allow, what is gone."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError, FlexibleChecksumError

from filmgate.aws.errors import read_refusal
from filmgate.errors import (
    FilmgateError,
    KeyRefused,
    ObjectCorrupt,
    ObjectNotFound,
    StoreForbidden,
    StoreUnavailable,
)


@contextmanager
def translated() -> Iterator[None]:
    """Around calls of boto3 alone: what a stream of chunks raises in between is not ours to rename."""
    try:
        yield
    except ClientError as exc:
        raise explain(exc) from exc
    except FlexibleChecksumError as exc:
        raise ObjectCorrupt("a stored object does not verify") from exc
    except BotoCoreError as exc:
        raise StoreUnavailable(f"S3 cannot be reached: {type(exc).__name__}") from exc


def explain(error: ClientError) -> FilmgateError:
    """Our error for an answer of S3."""
    refusal = read_refusal(error)
    if refusal.is_missing:
        return ObjectNotFound("there is no such object")
    if refusal.is_of_key:
        return KeyRefused(f"S3 cannot use the tenant's key: {refusal.words}")
    if refusal.is_denied:
        return StoreForbidden(f"S3 refuses: {refusal.words}", permission=refusal.permission)
    return StoreUnavailable(f"S3 refuses: {refusal.words}")
