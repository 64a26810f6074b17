"""One version of a model in S3: reads its manifest and ranges of its files, and uploads a folder as one."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filmgate.aws.clients import ClientOptions, Endpoint, check_boto3, open_s3, upload_config
from filmgate.aws.errors import AwsFailure, FailureKind, aws_errors
from filmgate.errors import FilmgateError, ModelError, StoreUnavailable, UsageError
from filmgate.models.weights.location import ModelLocation
from filmgate.models.weights.manifest import (
    MANIFEST_FILE,
    FileRecord,
    Manifest,
    build_manifest,
    parse_manifest,
)
from filmgate.settings import ModelSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_READ_BYTES = 1 << 20
_MIN_PART_BYTES = 5 << 20
_DIGEST_KEY = "sha256"


@dataclass(frozen=True, slots=True)
class PushResult:
    """The version after a push, and how many files the push uploaded."""

    url: str
    files: int
    size_bytes: int
    uploaded_files: int
    is_already_published: bool


class Remote:
    """One version of a model in its bucket.

    Raises StoreUnavailable when a retry may succeed, ModelError when it cannot: the object or the bucket does
    not exist, or a permission is missing.
    """

    def __init__(self, client: "S3Client", location: ModelLocation, settings: ModelSettings) -> None:
        self._client = client
        self.location = location
        self.settings = settings

    def read_manifest(self) -> Manifest:
        """Raises ModelError when the version does not exist."""
        if (found := self._find_manifest()) is None:
            raise ModelError(
                f"{self.location.url} has no {MANIFEST_FILE}; upload it with `filmgate models push`"
            )
        return found

    def read_range(self, file: FileRecord, begin: int, end: int) -> Iterator[bytes]:
        """The bytes [begin, end) of a file, over a separate connection."""
        with _s3_errors():
            wanted = f"bytes={begin}-{end - 1}"
            answer = self._client.get_object(**self._object(file.path), Range=wanted)
            with closing(answer["Body"]) as body:
                yield from body.iter_chunks(_READ_BYTES)

    def push(self, folder: Path, report: Callable[[str], None] = lambda _path: None) -> PushResult:
        """Uploads a diffusers folder: the missing files first, the manifest last. Overwrites nothing.

        Calls `report` with the path of each file. Raises UsageError if the version exists with other files.
        """
        manifest, found, uploaded = build_manifest(folder), self._find_manifest(), 0
        if found is not None and found != manifest:
            raise UsageError(
                f"{self.location.url} exists and has other files; push them as v{self.location.version + 1}",
                option="URL",
            )
        if found is None:
            for file in manifest.files:
                report(file.path)
                uploaded += self._push_file(folder, file)
            self._push_manifest(manifest)
        return PushResult(
            self.location.url,
            len(manifest.files),
            manifest.total_bytes,
            uploaded,
            is_already_published=found is not None,
        )

    def _push_file(self, folder: Path, file: FileRecord) -> bool:
        """Uploads one file, in parallel parts if it is large. Returns False if the bucket already has it."""
        if self._find_digest(file) == file.sha256:
            return False
        part_bytes = max(self.settings.range_bytes, _MIN_PART_BYTES)
        with _s3_errors():
            self._client.upload_file(
                str(folder / file.path),
                **self._object(file.path),
                ExtraArgs={"Metadata": {_DIGEST_KEY: file.sha256}, **self._encryption()},
                Config=upload_config(self.settings.connections, part_bytes),
            )
        return True

    def _push_manifest(self, manifest: Manifest) -> None:
        """Publishes the version. If two pushes of different files race, only the first succeeds."""
        try:
            with _s3_errors():
                self._client.put_object(
                    **self._object(MANIFEST_FILE),
                    Body=manifest.to_json().encode(),
                    ContentType="application/json",
                    IfNoneMatch="*",
                    **self._encryption(),
                )
        except UsageError:
            # boto3 repeats a request whose response was lost: then the version is the one of this push.
            if self._find_manifest() != manifest:
                raise

    def _find_manifest(self) -> Manifest | None:
        text: bytes | None = None
        with _s3_errors(is_missing_ok=True):
            text = self._client.get_object(**self._object(MANIFEST_FILE))["Body"].read()
        return None if text is None else parse_manifest(text, self.location.url + MANIFEST_FILE)

    def _find_digest(self, file: FileRecord) -> str | None:
        metadata: dict[str, str] = {}
        with _s3_errors(is_missing_ok=True):
            metadata = self._client.head_object(**self._object(file.path))["Metadata"]
        return metadata.get(_DIGEST_KEY)

    def _encryption(self) -> Any:
        """Without a key, the bucket's default applies."""
        if not self.settings.kms_key:
            return {}
        return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.settings.kms_key}

    def _object(self, path: str) -> Any:
        return {"Bucket": self.location.bucket, "Key": self.location.key(path)}


def open_remote(location: ModelLocation, settings: ModelSettings) -> Remote:
    """The version at this location. Sends no request. Raises SettingsError without boto3."""
    check_boto3("model")
    client = open_s3(
        Endpoint(settings.region, settings.endpoint),
        ClientOptions(max_attempts=3, max_connections=settings.connections + 4),
        is_verified_by_caller=True,
    )
    return Remote(client, location, settings)


def _s3_errors(*, is_missing_ok: bool = False) -> AbstractContextManager[None]:
    """Translates errors of S3 calls in the block. With `is_missing_ok`, a missing object is not an error."""

    def to_error(failure: AwsFailure) -> FilmgateError | None:
        if is_missing_ok and failure.kind is FailureKind.NOT_FOUND:
            return None
        return _to_error(failure)

    return aws_errors("S3", to_error)


def _to_error(failure: AwsFailure) -> FilmgateError:
    if failure.code == "PreconditionFailed":
        return UsageError("another push published this version first; push the next version", option="URL")
    match failure.kind:
        case FailureKind.DENIED:
            return ModelError(
                f"{failure.message} (without s3:ListBucket, S3 reports a missing object the same way)"
            )
        case FailureKind.NOT_FOUND | FailureKind.NO_RESOURCE:
            return ModelError(f"the object or its bucket does not exist: {failure.message}")
    return StoreUnavailable(failure.message)
