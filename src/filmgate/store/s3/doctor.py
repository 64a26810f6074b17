"""What `filmgate doctor` asks a bucket: is it there, may we use it, and is it set up as it should be."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from filmgate.aws.clients import open_s3
from filmgate.aws.doctor import look, remedy_of
from filmgate.aws.errors import read_refusal
from filmgate.aws.place import Place
from filmgate.errors import FilmgateError, SettingsError, StoreForbidden, StoreUnavailable
from filmgate.jobs import TenantId, new_job_id
from filmgate.settings import StoreSettings
from filmgate.store.base import UPLOAD_PART, ObjectName, ObjectStore
from filmgate.store.s3.errors import translated
from filmgate.store.s3.store import S3Store, key_template
from filmgate.telemetry.findings import Finding, Verdict

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_PROBE = b"filmgate doctor was here"


def examine(settings: StoreSettings, tenant_id: TenantId) -> Iterator[Finding]:
    """Findings about the bucket; its probe is written with the tenant's key."""
    try:
        place, key = Place.parse(settings.url), key_template(settings)
        client = open_s3(settings.region, settings.endpoint)
    except SettingsError as exc:
        yield Finding("S3", Verdict.FAIL, str(exc), remedy_of(exc))
        return
    found = look("S3 bucket", lambda: _reach(client, place))
    yield found
    if found.verdict is Verdict.OK:
        yield look("S3 objects", lambda: _probe(S3Store(client, place, key), tenant_id))
        yield from _setup(client, place, has_tenant_key=key is not None)


def _reach(client: "S3Client", place: Place) -> str:
    with translated():
        client.list_objects_v2(Bucket=place.bucket, Prefix=place.prefix, MaxKeys=1)
    return f"{place.bucket} answers in {client.meta.region_name}"


def _probe(store: ObjectStore, tenant_id: TenantId) -> str:
    """Put, get and delete one small object; of the kind that both the API and a worker may write."""
    name = ObjectName(tenant_id, new_job_id(), UPLOAD_PART)
    store.put(name, [_PROBE])
    try:
        if b"".join(store.read(name)) != _PROBE:
            raise StoreUnavailable("S3 gave back other bytes than it was given")
    finally:
        store.delete(tenant_id, name.job_id)
    return f"written, read and removed with the key of tenant {tenant_id}"


def _setup(client: "S3Client", place: Place, *, has_tenant_key: bool) -> Iterator[Finding]:
    yield _setting("S3 versions", lambda: _versioning(client, place.bucket))
    yield _setting("S3 encryption", lambda: _encryption(client, place.bucket, has_tenant_key=has_tenant_key))
    yield _setting("S3 lifecycle", lambda: _lifecycle(client, place.bucket))


def _setting(subject: str, action: Callable[[], Finding]) -> Finding:
    """Not being allowed to look is no fault of a worker's: only an operator needs to."""
    try:
        with translated():
            return action()
    except StoreForbidden as exc:
        return Finding(subject, Verdict.WARN, str(exc), "look again as an operator")
    except FilmgateError as exc:
        return Finding(subject, Verdict.FAIL, str(exc), remedy_of(exc))


def _versioning(client: "S3Client", bucket: str) -> Finding:
    status = client.get_bucket_versioning(Bucket=bucket).get("Status", "off")
    words = f"{status.lower()}; deleting removes every version"
    return Finding("S3 versions", Verdict.OK, words)


def _encryption(client: "S3Client", bucket: str, *, has_tenant_key: bool) -> Finding:
    try:
        rules = client.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
        default = rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"]
    except ClientError as exc:
        if read_refusal(exc).code != "ServerSideEncryptionConfigurationNotFoundError":
            raise
        default = "AES256"  # what S3 does by itself
    if has_tenant_key:
        return Finding("S3 encryption", Verdict.OK, f"each object with its tenant's key; default {default}")
    words, remedy = f"{default} for everybody: tenants share a key", "set store.kms_key"
    return Finding("S3 encryption", Verdict.WARN, words, remedy)


def _lifecycle(client: "S3Client", bucket: str) -> Finding:
    try:
        rules = client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    except ClientError as exc:
        if read_refusal(exc).code != "NoSuchLifecycleConfiguration":
            raise
        rules = []
    if any("AbortIncompleteMultipartUpload" in rule and rule["Status"] == "Enabled" for rule in rules):
        return Finding("S3 lifecycle", Verdict.OK, "unfinished uploads end by themselves")
    return Finding(
        "S3 lifecycle",
        Verdict.WARN,
        "unfinished uploads end by our own sweep alone",
        "filmgate aws policy --document lifecycle prints the rule",
    )
