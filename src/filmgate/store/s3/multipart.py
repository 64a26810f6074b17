"""Multipart uploads: parts are sent on threads while the rest of the object is still being produced."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from filmgate.errors import FilmgateError
from filmgate.store.s3.errors import s3_errors
from filmgate.telemetry.logs import Log

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

# S3's minimum: smaller parts leave less to send after the last frame. With S3's maximum of 10,000 parts an
# object can have 48 GiB.
PART_BYTES = 5 << 20
# Held in memory at once: these and the part that is being filled.
PARALLEL_PARTS = 4

log = Log("store")


def split(chunks: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The same bytes in parts of this size, each as soon as it is full; the last may be shorter."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        while len(pending) >= part_bytes:
            yield bytes(pending[:part_bytes])
            del pending[:part_bytes]
    if pending:
        yield bytes(pending)


@dataclass(slots=True)
class LateHead:
    """The head of an object, which may be known only after its body is complete."""

    read_head: Callable[[], bytes] | None
    size_bytes: int = 0

    def read(self) -> bytes:
        head = self.read_head() if self.read_head else b""
        self.size_bytes = len(head)
        return head

    def number(self, first: bytes, rest: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """The numbered parts, each as soon as it is known: S3 accepts them in any order."""
        if self.read_head is None:
            yield 1, first
        yield from enumerate(rest, start=2)
        if self.read_head is not None:
            yield 1, self.read() + first


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """Publishes numbered parts under a key: all of them in one step, or nothing."""

    client: "S3Client"
    bucket: str
    key: str

    def publish(self, parts: Iterable[tuple[int, bytes]], headers: Mapping[str, Any]) -> None:
        """`headers` set the object's media type and encryption."""
        with s3_errors():
            upload_id = self.client.create_multipart_upload(
                Bucket=self.bucket, Key=self.key, ChecksumAlgorithm="SHA256", **headers
            )["UploadId"]
        try:
            sent = self._send_all(upload_id, parts)
            with s3_errors():
                self.client.complete_multipart_upload(
                    Bucket=self.bucket, Key=self.key, UploadId=upload_id, MultipartUpload={"Parts": sent}
                )
        except BaseException:
            self._abort(upload_id)
            raise

    def _send_all(self, upload_id: str, parts: Iterable[tuple[int, bytes]]) -> "list[CompletedPartTypeDef]":
        sent: list[CompletedPartTypeDef] = []
        in_flight: deque[Future[CompletedPartTypeDef]] = deque()
        # Leaving the block waits for every part in flight; aborting earlier would leave such a part behind.
        with ThreadPoolExecutor(PARALLEL_PARTS, thread_name_prefix="s3-part") as pool:
            try:
                for number, part in parts:
                    if len(in_flight) == PARALLEL_PARTS:
                        sent.append(in_flight.popleft().result())
                    in_flight.append(pool.submit(self._send, upload_id, number, part))
                sent.extend(future.result() for future in in_flight)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return sorted(sent, key=lambda part: part["PartNumber"])

    def _send(self, upload_id: str, number: int, part: bytes) -> "CompletedPartTypeDef":
        with s3_errors():
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
        """Aborts the upload. If that fails too, the sweep aborts it later."""
        try:
            abort(self.client, self.bucket, self.key, upload_id)
        except FilmgateError as exc:
            log.warning("could not abort a multipart upload; the sweep will abort it", code=exc.code)


def abort(client: "S3Client", bucket: str, key: str, upload_id: str) -> bool:
    """Aborts an unfinished upload. Returns False if it no longer exists."""
    is_aborted = False
    with s3_errors(ignored_code="NoSuchUpload"):
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
        is_aborted = True
    return is_aborted  # noqa: RET504 - an ignored error skips the assignment
