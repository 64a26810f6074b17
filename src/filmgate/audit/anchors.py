"""Anchors: copies of signed heads in a place that a user of the database cannot change.

A file takes one line per head. In a bucket with Object Lock, each run writes one object that nobody, not
even the account's root user, can change or delete before its retention ends.
"""

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from filmgate.audit.records import Head
from filmgate.aws.clients import Endpoint, check_boto3, open_s3
from filmgate.aws.errors import AwsFailure, aws_errors
from filmgate.aws.s3_location import S3Location
from filmgate.errors import FilmgateError, SettingsError, StoreUnavailable
from filmgate.settings import AuditSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

DEFAULT_FILE = "audit-heads.jsonl"


class Anchor(Protocol):
    """Keeps heads. Raises StoreUnavailable (retryable)."""

    def put(self, heads: Sequence[Head]) -> None:
        """Store the heads durably. They are never replaced."""
        ...

    def heads(self) -> Iterator[Head]:
        """All stored heads, oldest first."""
        ...


class FileAnchor:
    """Heads as lines of a file, which should be on another volume than the database."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, heads: Sequence[Head]) -> None:
        try:
            with self._path.open("ab") as file:
                file.write(_to_lines(heads))
                file.flush()
                os.fsync(file.fileno())
        except OSError as exc:
            raise StoreUnavailable(f"audit heads cannot be written to {self._path}: {exc.strerror}") from exc

    def heads(self) -> Iterator[Head]:
        if self._path.exists():
            yield from _to_heads(self._path.read_bytes())


class S3Anchor:
    """Heads as locked objects under a prefix."""

    def __init__(self, client: "S3Client", place: S3Location, retention_seconds: float) -> None:
        self._client = client
        self._place = place
        self._retention = timedelta(seconds=retention_seconds)

    def put(self, heads: Sequence[Head]) -> None:
        now = datetime.now(UTC)
        key = f"{self._place.prefix}{now:%Y/%m/%d/%H%M%S}-{secrets.token_hex(4)}.jsonl"
        with _s3_errors(self._place.bucket):
            self._client.put_object(
                Bucket=self._place.bucket,
                Key=key,
                Body=_to_lines(heads),
                ContentType="application/x-ndjson",
                ChecksumAlgorithm="SHA256",
                ObjectLockMode="COMPLIANCE",
                ObjectLockRetainUntilDate=now + self._retention,
            )

    def heads(self) -> Iterator[Head]:
        with _s3_errors(self._place.bucket):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._place.bucket, Prefix=self._place.prefix
            )
            for page in pages:
                for item in page.get("Contents", []):
                    answer = self._client.get_object(Bucket=self._place.bucket, Key=item["Key"])
                    yield from _to_heads(answer["Body"].read())


def open_anchor(settings: AuditSettings, data: Path) -> Anchor:
    """The anchor that the settings name by URL scheme."""
    url = urlsplit(settings.anchor)
    if url.scheme in ("", "file"):
        return FileAnchor(Path(url.path) if url.path else data / DEFAULT_FILE)
    if url.scheme == "s3":
        check_boto3("audit.anchor")
        endpoint = Endpoint(settings.region, settings.endpoint, "audit.region")
        place = S3Location.parse(settings.anchor, "audit.anchor")
        return S3Anchor(open_s3(endpoint), place, settings.retention_seconds)
    raise SettingsError(
        f"unknown anchor {url.scheme}://; expected file:///FILE or s3://BUCKET/PREFIX", option="audit.anchor"
    )


def _to_lines(heads: Sequence[Head]) -> bytes:
    return b"".join(json.dumps(asdict(head)).encode() + b"\n" for head in heads)


def _to_heads(lines: bytes) -> Iterator[Head]:
    for line in lines.splitlines():
        # A power failure may leave half a line at the end; the head is anchored again by the next run.
        if line.startswith(b"{") and line.endswith(b"}"):
            yield Head(**json.loads(line))


def _s3_errors(bucket: str) -> AbstractContextManager[None]:
    def to_error(failure: AwsFailure) -> FilmgateError:
        return StoreUnavailable(f"{failure.message} (audit anchor in {bucket})")

    return aws_errors("S3", to_error)
