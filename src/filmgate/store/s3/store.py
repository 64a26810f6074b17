"""Objects in an S3 bucket, each encrypted by S3 with its tenant's KMS key.

s3://bucket/prefix/<tenant>/<job>/<part>     one PutObject, or a multipart upload that is published at its end
"""

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from filmgate.aws.clients import open_s3
from filmgate.aws.place import Place
from filmgate.aws.tenant_key import KeyTemplate, context_of
from filmgate.errors import LinkInvalid
from filmgate.jobs import JOB_ID_PATTERN, JobId, TenantId
from filmgate.settings import StoreSettings
from filmgate.store.base import PART_PATTERN, ObjectName, Room, StoredObject
from filmgate.store.metering import Meter
from filmgate.store.s3.errors import translated
from filmgate.store.s3.multipart import PART_BYTES, Front, PartsUpload, abort, split
from filmgate.store.s3.ranged import open_range
from filmgate.store.s3.versions import remove_versions

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LONGEST_LINK_SECONDS = 604_800
_TYPES = {".mp4": "video/mp4", ".jpg": "image/jpeg"}


def open_s3_store(settings: StoreSettings) -> "S3Store":
    """The store the settings describe. Nothing is asked of S3 yet."""
    place, key = Place.parse(settings.url), key_template(settings)
    return S3Store(open_s3(settings.region, settings.endpoint), place, key)


def key_template(settings: StoreSettings) -> KeyTemplate | None:
    """Which key encrypts a tenant's objects; None where the bucket's own default does."""
    return KeyTemplate(settings.kms_key) if settings.kms_key else None


class S3Store:
    """An ObjectStore on S3. Without a key template the bucket's own default encrypts."""

    def __init__(
        self,
        client: "S3Client",
        place: Place,
        key: KeyTemplate | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._bucket = place.bucket
        self._prefix = place.prefix
        self._key = key
        self._clock = clock

    def put(
        self,
        name: ObjectName,
        chunks: Iterable[bytes],
        *,
        is_durable: bool = True,  # noqa: ARG002 - S3 knows no other objects
        late_head: Callable[[], bytes] | None = None,
        head_bytes: int = 0,  # noqa: ARG002 - the head goes into the first part, which is sent last
    ) -> StoredObject:
        meter = Meter(chunks)
        parts = split(meter, PART_BYTES)
        first, front = next(parts, b""), Front(late_head)
        if len(first) < PART_BYTES:
            self._put_small(name, front.read() + first)
        else:
            upload = PartsUpload(self._client, self._bucket, self._key_of(name))
            upload.publish(front.number(first, parts), self._headers(name))
        sha256 = meter.sha256 if late_head is None else None
        return StoredObject(name, meter.size_bytes + front.size_bytes, sha256, self._clock())

    def read(self, name: ObjectName, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        if stop is not None and stop <= start:
            self.stat(name)
            return iter(())
        return open_range(self._client, self._bucket, self._key_of(name), start, stop)

    def stat(self, name: ObjectName) -> StoredObject:
        with translated():
            head = self._client.head_object(Bucket=self._bucket, Key=self._key_of(name))
        return StoredObject(name, head["ContentLength"], modified_at=head["LastModified"].timestamp())

    def delete(self, tenant_id: TenantId, job_id: JobId, prefix: str = "") -> int:
        under = self._home(tenant_id, job_id) + prefix
        removed = remove_versions(self._client, self._bucket, under)
        self._abort_uploads(under, started_before=float("inf"))
        return removed

    def parts(self, tenant_id: TenantId, job_id: JobId, prefix: str = "") -> list[StoredObject]:
        home = self._home(tenant_id, job_id)
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=home + prefix
        )
        with translated():
            found = [item for page in pages for item in page.get("Contents", [])]
        return [
            StoredObject(
                ObjectName(tenant_id, job_id, item["Key"].removeprefix(home)),
                item["Size"],
                modified_at=item["LastModified"].timestamp(),
            )
            for item in found
            if PART_PATTERN.fullmatch(item["Key"].removeprefix(home))
        ]

    def jobs(self, tenant_id: TenantId) -> Iterator[JobId]:
        home = f"{self._prefix}{tenant_id}/"
        # By versions: a job that only has old versions or delete markers left still takes up room.
        pages = self._client.get_paginator("list_object_versions").paginate(
            Bucket=self._bucket, Prefix=home, Delimiter="/"
        )
        with translated():
            found = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", [])]
        names = (prefix.removeprefix(home).removesuffix("/") for prefix in found)
        return (JobId(name) for name in names if JOB_ID_PATTERN.fullmatch(name))

    def link(self, name: ObjectName, seconds: float) -> str:
        with translated():
            return self._client.generate_presigned_url(
                "get_object",
                Params={"Bucket": self._bucket, "Key": self._key_of(name)},
                ExpiresIn=max(1, min(int(seconds), LONGEST_LINK_SECONDS)),
            )

    def resolve(self, token: str) -> ObjectName:  # noqa: ARG002
        raise LinkInvalid("links to this store's objects are S3's own")

    def room(self) -> Room:
        return Room(free_bytes=None, is_low=False)

    def sweep(self, older_than_seconds: float) -> int:
        return self._abort_uploads(self._prefix, started_before=self._clock() - older_than_seconds)

    def _key_of(self, name: ObjectName) -> str:
        return f"{self._prefix}{name}"

    def _home(self, tenant_id: TenantId, job_id: JobId) -> str:
        return self._key_of(ObjectName(tenant_id, job_id, "x")).removesuffix("x")

    def _put_small(self, name: ObjectName, data: bytes) -> None:
        with translated():
            self._client.put_object(
                Bucket=self._bucket,
                Key=self._key_of(name),
                Body=data,
                ChecksumAlgorithm="SHA256",
                **self._headers(name),
            )

    def _headers(self, name: ObjectName) -> dict[str, Any]:
        """How an object is stored: what it is called to a browser, and whose key encrypts it."""
        media_type = _TYPES.get(PurePosixPath(name.part).suffix, "application/octet-stream")
        headers: dict[str, Any] = {"ContentType": media_type, "CacheControl": "private, no-transform"}
        if self._key is None:
            return headers
        context = json.dumps(context_of(name.tenant_id)).encode()
        return headers | {
            "ServerSideEncryption": "aws:kms",
            "SSEKMSKeyId": self._key.of(name.tenant_id),
            "SSEKMSEncryptionContext": base64.b64encode(context).decode(),
            # A bucket key would hide the object and the tenant from the key's policy and from CloudTrail.
            "BucketKeyEnabled": False,
        }

    def _abort_uploads(self, prefix: str, *, started_before: float) -> int:
        pages = self._client.get_paginator("list_multipart_uploads").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        with translated():
            uploads = [upload for page in pages for upload in page.get("Uploads", [])]
        return sum(
            abort(self._client, self._bucket, upload["Key"], upload["UploadId"])
            for upload in uploads
            if upload["Initiated"].timestamp() < started_before
        )
