"""Reading from S3: a range in one answer, taken up again where it broke off."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from filmgate.aws.errors import read_refusal
from filmgate.errors import StoreUnavailable
from filmgate.store.s3.errors import translated

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, GetObjectRequestTypeDef

_CHUNK_BYTES = 1 << 20
# A player that pauses keeps its answer open until S3 hangs up; each time costs one more request.
_RESUMES = 100


def open_range(client: "S3Client", bucket: str, key: str, start: int, stop: int | None) -> Iterator[bytes]:
    """The bytes [start, stop); asked for at once, so that a missing object is missed before the first."""
    source = _Source(client, bucket, key)
    answer = source.ask(start, stop)
    if answer is None:
        return iter(())
    return source.stream(answer, start)


@dataclass(frozen=True, slots=True)
class _Source:
    client: "S3Client"
    bucket: str
    key: str

    def ask(self, start: int, stop: int | None, etag: str | None = None) -> "GetObjectOutputTypeDef | None":
        """The answer, its body still to be read; None when the range lies behind the end."""
        request: GetObjectRequestTypeDef = {"Bucket": self.bucket, "Key": self.key, "ChecksumMode": "ENABLED"}
        if start or stop is not None:
            request["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        if etag is not None:
            request["IfMatch"] = etag
        with translated():
            try:
                return self.client.get_object(**request)
            except ClientError as exc:
                if read_refusal(exc).code == "InvalidRange":
                    return None
                raise

    def stream(self, answer: "GetObjectOutputTypeDef", start: int) -> Iterator[bytes]:
        position, end = start, start + answer["ContentLength"]
        for _ in range(_RESUMES):
            try:
                for chunk in _chunks(answer["Body"]):
                    position += len(chunk)
                    yield chunk
                return
            except StoreUnavailable:
                if position >= end:
                    raise
            # The same object or none: half of one and half of another would pass for a clip.
            again = self.ask(position, end, answer["ETag"])
            if again is None:
                break
            answer = again
        raise StoreUnavailable("S3 breaks off again and again")


def _chunks(body: "StreamingBody") -> Iterator[bytes]:
    with closing(body):
        while True:
            with translated():
                chunk = body.read(_CHUNK_BYTES)
            if not chunk:
                return
            yield chunk
