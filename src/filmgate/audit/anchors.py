"""Anchors: copies of signed heads in a place that a user of the database cannot change.

A file has one line per head. A bucket with Object Lock has one object per head, which no user, not even the
account's root user, can change or delete before its retention ends.
"""

import io
import json
import mmap
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol
from urllib.parse import urlsplit

from filmgate.audit.records import Head
from filmgate.aws.clients import Endpoint, check_boto3, open_s3
from filmgate.aws.errors import AwsFailure, aws_errors
from filmgate.aws.s3_location import S3Location
from filmgate.database.records import read_record
from filmgate.errors import FilmgateError, SettingsError, StoreUnavailable
from filmgate.jobs import TenantId
from filmgate.settings import AuditSettings
from filmgate.settings.places import find_local

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

DEFAULT_FILE = "audit-heads.jsonl"


# Keys count down from here, so that S3 lists the newest head of a tenant first.
_MAX_NUMBER = 10**12


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An anchored line that is not a head: an interrupted write left it, or someone changed it."""

    place: str


class Anchor(Protocol):
    """Keeps heads. Raises StoreUnavailable (retryable)."""

    def put(self, heads: Sequence[Head]) -> None:
        """Store the heads durably. They are never replaced."""
        ...

    def newest(self, tenant_id: TenantId, until: int | None = None) -> Head | None:
        """The tenant's head with the highest number, at record `until` or before it."""
        ...

    def heads(self, tenant_id: TenantId | None = None) -> Iterator[Head | Unreadable]:
        """All stored heads, of one tenant or of all."""
        ...

    def check(self) -> None:
        """Return if heads can be stored and read, as far as this shows without storing one."""
        ...


class FileAnchor:
    """Heads as lines of a file, which should be on another volume than the database."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, heads: Sequence[Head]) -> None:
        try:
            with self._path.open("ab+") as file:
                # A line that a power failure or a full disk cut off must not damage the next one.
                separator = b"" if _ends_a_line(file) else b"\n"
                file.write(separator + b"".join(_to_line(head) for head in heads))
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise StoreUnavailable(f"audit heads cannot be written to {self._path}: {exc.strerror}") from exc

    def newest(self, tenant_id: TenantId, until: int | None = None) -> Head | None:
        with self._opened() as file:
            found = (_to_head(line) for line in _lines_backwards(file))
            heads = (head for head in found if head is not None and head.tenant_id == tenant_id)
            return next((head for head in heads if until is None or head.signed_number <= until), None)

    def heads(self, tenant_id: TenantId | None = None) -> Iterator[Head | Unreadable]:
        with self._opened() as file:
            for number, line in enumerate(file, 1):
                head = _to_head(line)
                if head is None:
                    yield Unreadable(f"line {number} of {self._path}")
                elif tenant_id in (None, head.tenant_id):
                    yield head

    def check(self) -> None:
        place = self._path if self._path.exists() else self._path.parent
        if self._path.is_dir() or not os.access(place, os.W_OK):
            raise StoreUnavailable(f"audit heads cannot be written to {self._path}")

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except FileNotFoundError:
            return io.BytesIO()
        except OSError as exc:
            raise StoreUnavailable(f"audit heads cannot be read from {self._path}: {exc.strerror}") from exc


class S3Anchor:
    """Heads as locked objects, `PREFIX/TENANT/NUMBER-RANDOM.json`."""

    def __init__(self, client: "S3Client", place: S3Location, retention_seconds: float) -> None:
        self._client = client
        self._place = place
        self._retention = timedelta(seconds=retention_seconds)

    def put(self, heads: Sequence[Head]) -> None:
        until = datetime.now(UTC) + self._retention
        with _s3_errors(self._place.bucket):
            for head in heads:
                self._client.put_object(
                    Bucket=self._place.bucket,
                    Key=f"{self._key(head.tenant_id, head.signed_number)}-{secrets.token_hex(4)}.json",
                    Body=_to_line(head),
                    ContentType="application/json",
                    ChecksumAlgorithm="SHA256",
                    ObjectLockMode="COMPLIANCE",
                    ObjectLockRetainUntilDate=until,
                )

    def newest(self, tenant_id: TenantId, until: int | None = None) -> Head | None:
        after = "" if until is None else self._key(tenant_id, until)
        found = self._read(self._list(f"{tenant_id}/", after))
        return next((head for head in found if isinstance(head, Head)), None)

    def heads(self, tenant_id: TenantId | None = None) -> Iterator[Head | Unreadable]:
        yield from self._read(self._list(f"{tenant_id}/" if tenant_id is not None else ""))

    def check(self) -> None:
        next(self._list(""), None)

    def _key(self, tenant_id: TenantId, number: int) -> str:
        return f"{self._place.prefix}{tenant_id}/{_MAX_NUMBER - number:012d}"

    def _list(self, folder: str, after: str = "") -> Iterator[str]:
        with _s3_errors(self._place.bucket):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._place.bucket,
                Prefix=self._place.prefix + folder,
                StartAfter=after or self._place.prefix,
            )
            for page in pages:
                yield from (item["Key"] for item in page.get("Contents", []))

    def _read(self, keys: Iterable[str]) -> Iterator[Head | Unreadable]:
        for key in keys:
            with _s3_errors(self._place.bucket):
                body = self._client.get_object(Bucket=self._place.bucket, Key=key)["Body"].read()
            yield _to_head(body) or Unreadable(f"s3://{self._place.bucket}/{key}")


def open_anchor(settings: AuditSettings, data: Path) -> Anchor:
    """The anchor that the settings name by URL scheme."""
    file = find_local(settings.anchor, data / DEFAULT_FILE, "audit.anchor")
    if file is not None:
        return FileAnchor(file)
    scheme = urlsplit(settings.anchor).scheme
    if scheme == "s3":
        check_boto3("audit.anchor")
        endpoint = Endpoint(settings.region, settings.endpoint, "audit.region")
        place = S3Location.parse(settings.anchor, "audit.anchor")
        return S3Anchor(open_s3(endpoint), place, settings.retention_seconds)
    raise SettingsError(
        f"unknown anchor {scheme}://; expected file:///FILE or s3://BUCKET/PREFIX", option="audit.anchor"
    )


def _to_line(head: Head) -> bytes:
    return json.dumps(asdict(head)).encode() + b"\n"


def _to_head(line: bytes) -> Head | None:
    try:
        return read_record(Head, json.loads(line))
    except (ValueError, RecursionError):
        return None


def _ends_a_line(file: BinaryIO) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    if (end := file.seek(0, os.SEEK_END)) == 0:
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while end > 0:
            start = content.rfind(b"\n", 0, end - 1) + 1
            yield content[start:end]
            end = start


def _s3_errors(bucket: str) -> AbstractContextManager[None]:
    def to_error(failure: AwsFailure) -> FilmgateError:
        return StoreUnavailable(f"{failure.message} (audit anchor in {bucket})")

    return aws_errors("S3", to_error)
