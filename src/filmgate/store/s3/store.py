"""Objects in an S3 bucket, each encrypted by S3 with its tenant's KMS key.

s3://bucket/prefix/<tenant>/<job>/<part>     one PutObject, or a multipart upload published when complete
"""

import base64
import json
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from filmgate.aws.clients import Endpoint, SessionCredentials, open_s3
from filmgate.aws.s3_location import S3Location
from filmgate.aws.tenant_key import KeyTemplate, encryption_context
from filmgate.errors import LinkInvalid
from filmgate.jobs import JOB_ID_PATTERN, JobId, TenantId
from filmgate.settings import StoreSettings
from filmgate.store.base import PART_PATTERN, Chunks, Meter, ObjectName, StoredObject, media_type_of
from filmgate.store.s3.errors import s3_errors
from filmgate.store.s3.multipart import PART_BYTES, LateHead, MultipartUpload, abort, split
from filmgate.store.s3.ranged import no_chunks, open_range
from filmgate.store.s3.versions import delete_versions, list_versions
from filmgate.store.tenant_role import open_tenant_clients

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_LINK_SECONDS = 604_800


def open_s3_store(settings: StoreSettings) -> "S3Store":
    """Opens the store of the settings. Sends no request. Raises SettingsError."""
    location, key = S3Location.parse(settings.url), key_template(settings)
    client_of = open_tenant_clients(settings, partial(open_client, settings))
    return S3Store(open_client(settings), location, key, client_of=client_of)


def open_client(settings: StoreSettings, credentials: "SessionCredentials | None" = None) -> "S3Client":
    endpoint = Endpoint(settings.region, settings.endpoint, "store.region")
    return open_s3(endpoint, is_signing_links=True, credentials=credentials)


def key_template(settings: StoreSettings) -> KeyTemplate | None:
    """The keys that encrypt tenants' objects; None if the bucket's default encryption applies."""
    return KeyTemplate(settings.kms_key) if settings.kms_key else None


class S3Store:
    """An ObjectStore on S3. Without a key template the bucket's default encryption applies.

    `client_of` returns the client that acts for a tenant; None: `client` acts for all of them.
    """

    def __init__(
        self,
        client: "S3Client",
        location: S3Location,
        key: KeyTemplate | None,
        clock: Callable[[], float] = time.time,
        client_of: "Callable[[TenantId], S3Client] | None" = None,
    ) -> None:
        self._client = client
        self.client_of = client_of or (lambda _tenant_id: client)
        self._bucket = location.bucket
        self._prefix = location.prefix
        self._key = key
        self._clock = clock

    @property
    def identity(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    def put(
        self,
        name: ObjectName,
        chunks: Iterable[bytes],
        *,
        is_durable: bool = True,  # noqa: ARG002 - every S3 object is durable
        late_head: Callable[[], bytes] | None = None,
        head_bytes: int = 0,  # noqa: ARG002 - the head goes into the first part, which is sent last
    ) -> StoredObject:
        meter = Meter(chunks)
        parts = split(meter, PART_BYTES)
        first, head = next(parts, b""), LateHead(late_head)
        if len(first) < PART_BYTES:
            self._put_small(name, head.read() + first)
        else:
            upload = MultipartUpload(self.client_of(name.tenant_id), self._bucket, self._key_of(name))
            upload.publish(head.number(first, parts), self._headers(name))
        sha256 = meter.sha256 if late_head is None else None
        return StoredObject(name, meter.size_bytes + head.size_bytes, sha256, self._clock())

    def read(self, name: ObjectName, start: int = 0, stop: int | None = None) -> Chunks:
        if stop is not None and stop <= start:
            self.stat(name)
            return no_chunks()
        return open_range(self.client_of(name.tenant_id), self._bucket, self._key_of(name), start, stop)

    def stat(self, name: ObjectName) -> StoredObject:
        with s3_errors():
            head = self.client_of(name.tenant_id).head_object(Bucket=self._bucket, Key=self._key_of(name))
        return StoredObject(name, head["ContentLength"], modified_at=head["LastModified"].timestamp())

    def delete(self, tenant_id: TenantId, job_id: JobId, prefix: str = "") -> int:
        key_prefix = self._job_prefix(tenant_id, job_id) + prefix
        client = self.client_of(tenant_id)
        deleted = delete_versions(client, self._bucket, key_prefix)
        self._abort_uploads(client, key_prefix, started_before=float("inf"))
        return deleted

    def jobs(self, tenant_id: TenantId) -> Iterator[tuple[JobId, list[StoredObject]]]:
        tenant_prefix = f"{self._prefix}{tenant_id}/"

        def job_of(item: dict[str, Any]) -> str:
            return str(item["Key"]).removeprefix(tenant_prefix).partition("/")[0]

        # Lists versions, because a job with only old versions or delete markers still uses storage.
        found = list_versions(self.client_of(tenant_id), self._bucket, tenant_prefix)
        for name, items in groupby(found, job_of):
            if JOB_ID_PATTERN.fullmatch(name):
                current = (item for item in items if item["IsLatest"] and "Size" in item)
                yield JobId(name), self._to_parts(tenant_id, JobId(name), current)

    def _to_parts(
        self, tenant_id: TenantId, job_id: JobId, items: Iterable[dict[str, Any]]
    ) -> list[StoredObject]:
        job_prefix = self._job_prefix(tenant_id, job_id)
        named = ((item["Key"].removeprefix(job_prefix), item) for item in items)
        return [
            StoredObject(
                ObjectName(tenant_id, job_id, part),
                item["Size"],
                modified_at=item["LastModified"].timestamp(),
            )
            for part, item in named
            if PART_PATTERN.fullmatch(part)
        ]

    def link(self, name: ObjectName, seconds: float) -> str:
        with s3_errors():
            return self.client_of(name.tenant_id).generate_presigned_url(
                "get_object",
                Params={"Bucket": self._bucket, "Key": self._key_of(name)},
                ExpiresIn=max(1, min(int(seconds), MAX_LINK_SECONDS)),
            )

    def resolve(self, token: str) -> ObjectName:  # noqa: ARG002
        raise LinkInvalid("this link is not valid: objects in S3 have presigned links")

    def is_nearly_full(self) -> bool:
        return False

    def sweep(self, older_than_seconds: float) -> int:
        return self._abort_uploads(
            self._client, self._prefix, started_before=self._clock() - older_than_seconds
        )

    def _key_of(self, name: ObjectName) -> str:
        return f"{self._prefix}{name}"

    def _job_prefix(self, tenant_id: TenantId, job_id: JobId) -> str:
        return self._key_of(ObjectName(tenant_id, job_id, "x")).removesuffix("x")

    def _put_small(self, name: ObjectName, data: bytes) -> None:
        with s3_errors():
            self.client_of(name.tenant_id).put_object(
                Bucket=self._bucket,
                Key=self._key_of(name),
                Body=data,
                ChecksumAlgorithm="SHA256",
                **self._headers(name),
            )

    def _headers(self, name: ObjectName) -> dict[str, Any]:
        """The object's media type and encryption."""
        headers: dict[str, Any] = {
            "ContentType": media_type_of(name.part),
            "CacheControl": "private, no-transform",
        }
        if self._key is None:
            return headers
        context = json.dumps(encryption_context(name.tenant_id)).encode()
        return headers | {
            "ServerSideEncryption": "aws:kms",
            "SSEKMSKeyId": self._key.of(name.tenant_id),
            "SSEKMSEncryptionContext": base64.b64encode(context).decode(),
            # With a bucket key, neither the key policy nor CloudTrail would see the object and the tenant.
            "BucketKeyEnabled": False,
        }

    def _abort_uploads(self, client: "S3Client", prefix: str, *, started_before: float) -> int:
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=prefix)
        with s3_errors():
            uploads = [upload for page in pages for upload in page.get("Uploads", [])]
        return sum(
            abort(client, self._bucket, upload["Key"], upload["UploadId"])
            for upload in uploads
            if upload["Initiated"].timestamp() < started_before
        )
