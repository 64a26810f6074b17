"""What is asked of S3: whole manifests, ranges of files, and puts. Only this file knows boto3."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from filmgate.aws.clients import check_boto3
from filmgate.errors import ModelError, StoreUnavailable, UsageError
from filmgate.models.weights.location import ModelLocation
from filmgate.models.weights.manifest import MANIFEST_FILE, FileRecord, Manifest, parse_manifest
from filmgate.settings import ModelSettings

_CONNECT_SECONDS = 5.0
_READ_SECONDS = 30.0
_READ_BYTES = 1 << 20
_SMALLEST_PART = 5 << 20
_DIGEST_KEY = "sha256"
_NO_KEY = ("NoSuchKey", "404", "NotFound")
_ABSENT = (*_NO_KEY, "NoSuchBucket")
_DENIED = ("AccessDenied", "403")
# What an operation is called in a policy, where that is not its own name.
_PERMISSIONS = {"HeadObject": "s3:GetObject"}


class Remote:
    """One version of a model in its bucket. Raises StoreUnavailable when S3 refuses or cannot be reached."""

    def __init__(self, client: Any, location: ModelLocation, settings: ModelSettings) -> None:
        self._client = client
        self.location = location
        self.settings = settings

    def read_manifest(self) -> Manifest:
        """Raises ModelError when the version is not there."""
        if (found := self._find_manifest()) is None:
            raise ModelError(
                f"{self.location.url} holds no {MANIFEST_FILE}; write it with `filmgate models push`"
            )
        return found

    def read_range(self, file: FileRecord, begin: int, end: int) -> Iterator[bytes]:
        """Bytes `begin` to `end` of a file, over a connection of their own."""
        yield from self._stream(file, Range=f"bytes={begin}-{end - 1}")

    def read_whole(self, file: FileRecord) -> Iterator[bytes]:
        """A file in one stream: what a plain download does."""
        yield from self._stream(file)

    def _stream(self, file: FileRecord, **options: str) -> Iterator[bytes]:
        place = {"Bucket": self.location.bucket, "Key": self.location.key(file.path)}
        with translated_errors(), closing(self._client.get_object(**place, **options)["Body"]) as body:
            yield from body.iter_chunks(_READ_BYTES)

    def push_file(self, folder: Path, file: FileRecord) -> bool:
        """Upload one file, in parallel parts if it is large; False when it was there already."""
        from boto3.s3.transfer import TransferConfig

        if self._find_digest(file) == file.sha256:
            return False
        part_bytes = max(self.settings.range_bytes, _SMALLEST_PART)
        config = TransferConfig(
            max_concurrency=self.settings.connections,
            multipart_threshold=part_bytes,
            multipart_chunksize=part_bytes,
        )
        with translated_errors():
            self._client.upload_file(
                str(folder / file.path),
                self.location.bucket,
                self.location.key(file.path),
                ExtraArgs={"Metadata": {_DIGEST_KEY: file.sha256}},
                Config=config,
            )
        return True

    def push_manifest(self, manifest: Manifest) -> None:
        """Publish the version; the first one to do so wins."""
        with translated_errors():
            self._client.put_object(
                Bucket=self.location.bucket,
                Key=self.location.key(MANIFEST_FILE),
                Body=manifest.to_json().encode(),
                ContentType="application/json",
                IfNoneMatch="*",
            )

    def require_new(self, manifest: Manifest) -> bool:
        """Whether the version is still to be made; raises UsageError when it is taken by other files."""
        found = self._find_manifest()
        if found is not None and found != manifest:
            raise UsageError(
                f"{self.location.url} exists and has other files; push them as v{self.location.version + 1}",
                option="URL",
            )
        return found is None

    def _find_manifest(self) -> Manifest | None:
        key = self.location.key(MANIFEST_FILE)
        with translated_errors(), _absent_is_none() as found:
            found.append(self._client.get_object(Bucket=self.location.bucket, Key=key)["Body"].read())
        return parse_manifest(found[0], self.location.url + MANIFEST_FILE) if found else None

    def _find_digest(self, file: FileRecord) -> str | None:
        key = self.location.key(file.path)
        with translated_errors(), _absent_is_none() as found:
            found.append(self._client.head_object(Bucket=self.location.bucket, Key=key)["Metadata"])
        return found[0].get(_DIGEST_KEY) if found else None


def open_remote(location: ModelLocation, settings: ModelSettings, *, is_anonymous: bool = False) -> Remote:
    """The version at this location; nothing is asked of S3 yet. Raises SettingsError without boto3."""
    check_boto3("model")
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": 3},
        max_pool_connections=settings.connections + 4,
        # Our own digests cover every byte; a second checksum of each stream would cost a core.
        response_checksum_validation="when_required",
        signature_version=UNSIGNED if is_anonymous else None,
        s3={"addressing_style": "path"} if settings.endpoint else None,
    )
    client = boto3.client(
        "s3", region_name=settings.region or None, endpoint_url=settings.endpoint or None, config=config
    )
    return Remote(client, location, settings)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Whatever boto3 raises becomes StoreUnavailable, which another try may mend, or ModelError, which none
    will: an object that is not there, a permission that is missing and is named.
    """
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError as exc:
        raise StoreUnavailable("no AWS credentials; set AWS_PROFILE or give this machine a role") from exc
    except ClientError as exc:
        code = exc.response.get("Error", {}).get("Code", "")
        if code in _DENIED:
            permission = _PERMISSIONS.get(exc.operation_name, f"s3:{exc.operation_name}")
            words = (
                f"S3 refused: {permission} is missing (without s3:ListBucket an absent object looks the same)"
            )
            raise ModelError(words) from exc
        if code == "PreconditionFailed":
            raise UsageError(
                "another push published this version first; push the next one", option="URL"
            ) from exc
        if code in _ABSENT:
            raise ModelError(f"S3 has no such object or bucket ({code}, {exc.operation_name})") from exc
        raise StoreUnavailable(f"S3 refused {exc.operation_name}: {code}") from exc
    except Boto3Error as exc:
        raise StoreUnavailable(str(exc).partition("\n")[0]) from exc
    except BotoCoreError as exc:
        raise StoreUnavailable(f"S3 cannot be reached: {type(exc).__name__}") from exc


@contextmanager
def _absent_is_none() -> Iterator[list[Any]]:
    """A list that stays empty when there is no such object."""
    from botocore.exceptions import ClientError

    found: list[Any] = []
    try:
        yield found
    except ClientError as exc:
        if exc.response.get("Error", {}).get("Code") not in _NO_KEY:
            raise
