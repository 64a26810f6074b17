"""Doctor checks of the bucket: it exists, its objects can be used, and it is configured as recommended."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from filmgate.aws.doctor import check, remedy_for
from filmgate.aws.s3_location import S3Location
from filmgate.errors import FilmgateError, SettingsError, StoreForbidden, StoreUnavailable
from filmgate.jobs import TenantId, new_job_id
from filmgate.settings import StoreSettings
from filmgate.store.base import UPLOAD_PART, ObjectName, ObjectStore
from filmgate.store.s3.errors import s3_errors
from filmgate.store.s3.store import key_template, open_client, open_s3_store
from filmgate.telemetry.findings import Finding, Verdict

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PROBE = b"filmgate doctor"


def check_bucket(settings: StoreSettings, tenant_id: TenantId) -> Iterator[Finding]:
    """Findings about the bucket. The probe object is encrypted with the tenant's key."""
    try:
        location, key = S3Location.parse(settings.url), key_template(settings)
        client, bucket = open_client(settings), location.bucket
        store = open_s3_store(settings)
    except SettingsError as exc:
        yield Finding("S3", Verdict.FAIL, str(exc), remedy_for(exc))
        return
    found = check("S3 bucket", lambda: _list_objects(store.client_of(tenant_id), location, tenant_id))
    yield found
    if found.verdict is Verdict.OK:
        yield check("S3 objects", lambda: _probe(store, tenant_id))
        yield _check_setting("S3 versions", lambda: _check_versioning(client, bucket))
        yield _check_setting(
            "S3 encryption", lambda: _check_encryption(client, bucket, has_tenant_key=key is not None)
        )
        yield _check_setting("S3 lifecycle", lambda: _check_lifecycle(client, bucket))


def _list_objects(client: "S3Client", location: S3Location, tenant_id: TenantId) -> str:
    """The role of a dedicated tenant may list only the objects of this tenant."""
    with s3_errors():
        client.list_objects_v2(Bucket=location.bucket, Prefix=f"{location.prefix}{tenant_id}/", MaxKeys=1)
    return f"{location.bucket} answers in {client.meta.region_name}"


def _probe(store: ObjectStore, tenant_id: TenantId) -> str:
    """Writes, reads and deletes one small object, under a name that API and workers may both write."""
    name = ObjectName(tenant_id, new_job_id(), UPLOAD_PART)
    store.put(name, [_PROBE])
    try:
        if b"".join(store.read(name)) != _PROBE:
            raise StoreUnavailable("S3 returned different bytes than were written")
    finally:
        store.delete(tenant_id, name.job_id)
    return f"written, read and deleted with the key of tenant {tenant_id}"


def _check_setting(subject: str, action: Callable[[], Finding]) -> Finding:
    """A missing permission is only a warning here: API and workers do not need to read these settings."""
    try:
        with s3_errors():
            return action()
    except StoreForbidden as exc:
        return Finding(subject, Verdict.WARN, str(exc), "run the doctor as an operator")
    except FilmgateError as exc:
        return Finding(subject, Verdict.FAIL, str(exc), remedy_for(exc))


def _check_versioning(client: "S3Client", bucket: str) -> Finding:
    status = client.get_bucket_versioning(Bucket=bucket).get("Status", "off")
    return Finding("S3 versions", Verdict.OK, f"{status.lower()}; a delete removes all versions")


def _check_encryption(client: "S3Client", bucket: str, *, has_tenant_key: bool) -> Finding:
    default = "AES256"  # S3's own default
    with s3_errors(ignored_code="ServerSideEncryptionConfigurationNotFoundError"):
        rules = client.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
        default = rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"]
    if has_tenant_key:
        return Finding("S3 encryption", Verdict.OK, f"each object with its tenant's key; default {default}")
    message, remedy = f"{default} for all objects: tenants share a key", "set store.kms_key"
    return Finding("S3 encryption", Verdict.WARN, message, remedy)


def _check_lifecycle(client: "S3Client", bucket: str) -> Finding:
    has_rule = False
    with s3_errors(ignored_code="NoSuchLifecycleConfiguration"):
        has_rule = any(
            "AbortIncompleteMultipartUpload" in rule and rule["Status"] == "Enabled"
            for rule in client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
        )
    if has_rule:
        return Finding("S3 lifecycle", Verdict.OK, "S3 aborts unfinished uploads")
    return Finding(
        "S3 lifecycle",
        Verdict.WARN,
        "only Filmgate's sweep aborts unfinished uploads",
        "filmgate aws policy --document lifecycle prints the rule",
    )
