"""Ranged reads from S3. A read that breaks off resumes at the next byte of the same object."""

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from filmgate.errors import StoreUnavailable
from filmgate.store.base import Chunks
from filmgate.store.s3.errors import s3_errors

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, GetObjectRequestTypeDef

_CHUNK_BYTES = 1 << 20
# S3 closes the connection of a player that pauses for long; each resume is one more request.
_MAX_RESUMES = 100


def open_range(client: "S3Client", bucket: str, key: str, start: int, stop: int | None) -> Chunks:
    """The bytes [start, stop). Raises ObjectNotFound here, before the first byte is read."""
    source = _Source(client, bucket, key)
    answer = source.request(start, stop)
    return no_chunks() if answer is None else source.stream(answer, start)


def no_chunks() -> Chunks:
    """The bytes of an empty range."""
    yield from ()


@dataclass(frozen=True, slots=True)
class _Source:
    client: "S3Client"
    bucket: str
    key: str

    def request(
        self, start: int, stop: int | None, etag: str | None = None
    ) -> "GetObjectOutputTypeDef | None":
        """The response, with its body not read yet; None if the range starts after the object's end."""
        request: GetObjectRequestTypeDef = {"Bucket": self.bucket, "Key": self.key, "ChecksumMode": "ENABLED"}
        if start or stop is not None:
            request["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        if etag is not None:
            request["IfMatch"] = etag
        answer: GetObjectOutputTypeDef | None = None
        with s3_errors(ignored_code="InvalidRange"):
            answer = self.client.get_object(**request)
        return answer  # noqa: RET504 - an ignored error skips the assignment

    def stream(self, answer: "GetObjectOutputTypeDef", start: int) -> Chunks:
        position, end = start, start + answer["ContentLength"]
        for _ in range(_MAX_RESUMES):
            try:
                with closing(_chunks(answer)) as chunks:
                    for chunk in chunks:
                        position += len(chunk)
                        yield chunk
                return
            except StoreUnavailable:
                if position >= end:
                    raise
            # The ETag must match: a clip must not mix the bytes of two objects.
            resumed = self.request(position, end, answer["ETag"])
            if resumed is None:
                break
            answer = resumed
        raise StoreUnavailable(f"S3 read failed after {_MAX_RESUMES} resumes")


def _chunks(answer: "GetObjectOutputTypeDef") -> Chunks:
    with closing(answer["Body"]) as body:
        while True:
            with s3_errors():
                chunk = body.read(_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
