"""One S3 object in parts, which go up on threads while the rest of it is still being made."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from filmgate.errors import FilmgateError
from filmgate.store.s3.errors import translated
from filmgate.telemetry.logs import Log

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

# S3's smallest: the less waits for a part to fill, the less is left to send after the last frame. With S3's
# most parts, 10,000, an object may have 48 GiB.
PART_BYTES = 5 << 20
# In memory at once: these, and the one that fills.
PARALLEL_PARTS = 4

log = Log("store")


def split(chunks: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The same bytes in pieces of this size, each as soon as it is full; the last may be shorter."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        while len(pending) >= part_bytes:
            yield bytes(pending[:part_bytes])
            del pending[:part_bytes]
    if pending:
        yield bytes(pending)


@dataclass(slots=True)
class Front:
    """What belongs in front of a stream and may only be known at its end."""

    ask: Callable[[], bytes] | None
    size_bytes: int = 0

    def read(self) -> bytes:
        head = self.ask() if self.ask else b""
        self.size_bytes = len(head)
        return head

    def number(self, first: bytes, rest: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """The parts and their numbers, each when it is known: S3 takes them in any order."""
        if self.ask is None:
            yield 1, first
        yield from enumerate(rest, start=2)
        if self.ask is not None:
            yield 1, self.read() + first


@dataclass(frozen=True, slots=True)
class PartsUpload:
    """Publishes numbered parts under a key: all of them in one step, or nothing."""

    client: "S3Client"
    bucket: str
    key: str

    def publish(self, parts: Iterable[tuple[int, bytes]], headers: Mapping[str, Any]) -> None:
        """`headers` say how the object is stored: its type and its encryption."""
        with translated():
            upload_id = self.client.create_multipart_upload(
                Bucket=self.bucket, Key=self.key, ChecksumAlgorithm="SHA256", **headers
            )["UploadId"]
        try:
            sent = self._send_all(upload_id, parts)
            with translated():
                self.client.complete_multipart_upload(
                    Bucket=self.bucket, Key=self.key, UploadId=upload_id, MultipartUpload={"Parts": sent}
                )
        except BaseException:
            self._abort(upload_id)
            raise

    def _send_all(self, upload_id: str, parts: Iterable[tuple[int, bytes]]) -> "list[CompletedPartTypeDef]":
        sent: list[CompletedPartTypeDef] = []
        flying: deque[Future[CompletedPartTypeDef]] = deque()
        # Leaving the block waits for every part in the air: an abort before that would miss it.
        with ThreadPoolExecutor(PARALLEL_PARTS, thread_name_prefix="s3-part") as pool:
            try:
                for number, part in parts:
                    if len(flying) == PARALLEL_PARTS:
                        sent.append(flying.popleft().result())
                    flying.append(pool.submit(self._send, upload_id, number, part))
                sent.extend(future.result() for future in flying)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return sorted(sent, key=lambda part: part["PartNumber"])

    def _send(self, upload_id: str, number: int, part: bytes) -> "CompletedPartTypeDef":
        with translated():
            answer = self.client.upload_part(
                Bucket=self.bucket,
                Key=self.key,
                UploadId=upload_id,
                PartNumber=number,
                Body=part,
                ChecksumAlgorithm="SHA256",
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": answer["ChecksumSHA256"]}

    def _abort(self, upload_id: str) -> None:
        """Give the parts back. What a failing S3 keeps is found by the sweep."""
        try:
            abort(self.client, self.bucket, self.key, upload_id)
        except FilmgateError as exc:
            log.warning("an unfinished upload stays until the sweep", code=exc.code)


def abort(client: "S3Client", bucket: str, key: str, upload_id: str) -> bool:
    """Drop an unfinished upload; False when it is gone already."""
    with translated():
        try:
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
        except client.exceptions.NoSuchUpload:
            return False
    return True
