"""Doctor checks of model weights.

The folder of the cache is writable and its budget fits the disk; the bucket keeps old versions and encrypts
weights with your own KMS key.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filmgate.aws.clients import ClientOptions, Endpoint, open_s3
from filmgate.aws.doctor import remedy_for
from filmgate.aws.errors import AwsFailure, FailureKind, aws_errors
from filmgate.aws.s3_location import S3Location
from filmgate.errors import FilmgateError, SettingsError, StoreForbidden, StoreUnavailable
from filmgate.settings import ModelSettings
from filmgate.telemetry.findings import Finding, Verdict

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CACHE = "model cache"
_VERSIONS = "model versions"
_ENCRYPTION = "model encryption"
_MANAGED_BY_AWS = "alias/aws/s3"
_NO_DEFAULT = "ServerSideEncryptionConfigurationNotFoundError"


def check_cache(settings: ModelSettings) -> Iterator[Finding]:
    """A finding about a configured cache. The default cache is in the data folder and has none."""
    if not settings.cache:
        return
    folder = Path(settings.cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            disk = shutil.disk_usage(folder)
    except OSError as exc:
        remedy = "set models.cache to a folder that this process can write"
        yield Finding(_CACHE, Verdict.FAIL, f"{folder}: {exc.strerror}", remedy)
        return
    message = f"{folder}: {disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB free"
    if settings.cache_bytes > disk.total:
        remedy = f"set models.cache_bytes to at most {disk.total}"
        yield Finding(_CACHE, Verdict.WARN, f"{message}; models.cache_bytes exceeds the disk", remedy)
        return
    yield Finding(_CACHE, Verdict.OK, message)


def check_models_bucket(settings: ModelSettings) -> Iterator[Finding]:
    """Findings about the bucket of `models.url`; none without one."""
    if not settings.url:
        return
    try:
        bucket = S3Location.parse(settings.url, "models.url").bucket
        client = open_s3(Endpoint(settings.region, settings.endpoint), ClientOptions())
    except SettingsError as exc:
        yield Finding("models", Verdict.FAIL, str(exc), remedy_for(exc))
        return
    yield _check(_VERSIONS, lambda: _check_versioning(client, bucket))
    yield _check(_ENCRYPTION, lambda: _check_encryption(client, bucket, settings.kms_key))


def _check(subject: str, action: Callable[[], Finding]) -> Finding:
    """A missing permission is a warning: only an operator may read how the bucket is configured."""
    try:
        with aws_errors("S3", _to_error):
            return action()
    except StoreForbidden as exc:
        return Finding(subject, Verdict.WARN, str(exc), "run the doctor as an operator")
    except FilmgateError as exc:
        return Finding(subject, Verdict.FAIL, str(exc), "check models.url, models.region and the network")


def _to_error(failure: AwsFailure) -> FilmgateError:
    if failure.kind is FailureKind.DENIED:
        return StoreForbidden(failure.message, permission=failure.permission)
    return StoreUnavailable(failure.message)


def _check_versioning(client: "S3Client", bucket: str) -> Finding:
    status = client.get_bucket_versioning(Bucket=bucket).get("Status", "off")
    if status == "Enabled":
        return Finding(_VERSIONS, Verdict.OK, f"{bucket} keeps old versions")
    remedy = f"aws s3api put-bucket-versioning --bucket {bucket} --versioning-configuration Status=Enabled"
    message = f"versioning of {bucket} is {status.lower()}: a model that is deleted or overwritten is lost"
    return Finding(_VERSIONS, Verdict.WARN, message, remedy)


def _check_encryption(client: "S3Client", bucket: str, key: str) -> Finding:
    if key:
        return Finding(_ENCRYPTION, Verdict.OK, f"a push encrypts with {key}")
    algorithm, default_key = _default_encryption(client, bucket)
    if default_key and not default_key.endswith(_MANAGED_BY_AWS):
        return Finding(_ENCRYPTION, Verdict.OK, f"{bucket} encrypts with {default_key}")
    message = f"{bucket} encrypts with {algorithm}, not with a KMS key of yours"
    return Finding(_ENCRYPTION, Verdict.WARN, message, "set models.kms_key, or a default key of the bucket")


def _default_encryption(client: "S3Client", bucket: str) -> tuple[str, str]:
    """The algorithm and the key; S3's own default where the bucket has none."""
    rules: list[Any] = []
    with aws_errors("S3", lambda failure: None if failure.code == _NO_DEFAULT else _to_error(failure)):
        answer = client.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]
        rules = [rule["ApplyServerSideEncryptionByDefault"] for rule in answer["Rules"]]
    return (rules[0]["SSEAlgorithm"], rules[0].get("KMSMasterKeyID", "")) if rules else ("AES256", "")
