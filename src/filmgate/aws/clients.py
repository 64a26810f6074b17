"""boto3 clients, made in one place: the same patience everywhere, and a plain word where boto3 is missing."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from filmgate.errors import RunError, SettingsError

if TYPE_CHECKING:
    from boto3 import Session
    from botocore.config import Config
    from mypy_boto3_kms import KMSClient
    from mypy_boto3_s3 import S3Client

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
# One try and three more, with jittered backoff; whoever called may be patient on top of it.
ATTEMPTS = 4
CONNECTIONS = 32


def has_boto3() -> bool:
    """Whether the `aws` extra is installed."""
    return find_spec("boto3") is not None


def check_boto3(option: str) -> None:
    """Raises SettingsError, with the remedy, when the `aws` extra is not installed."""
    if not has_boto3():
        raise SettingsError('boto3 is not installed; run: pip install "filmgate[aws]"', option=option)


def open_s3(region: str, endpoint: str) -> "S3Client":
    """An S3 client; empty means what boto3 finds in the environment."""
    session, region = _session(region)
    return session.client(
        "s3",
        region_name=region,
        endpoint_url=endpoint or None,
        config=_config().merge(_s3_config(is_own_endpoint=bool(endpoint))),
    )


def open_kms(region: str, endpoint: str) -> "KMSClient":
    """A KMS client; empty means what boto3 finds in the environment."""
    session, region = _session(region)
    return session.client("kms", region_name=region, endpoint_url=endpoint or None, config=_config())


def open_pricing(region: str) -> Any:
    """A Price List API client. Raises SettingsError without credentials, RunError for a broken profile."""
    from botocore.exceptions import BotoCoreError

    try:
        session, region = _session(region)
        if session.get_credentials() is None:
            raise SettingsError("no AWS credentials found; set AWS_PROFILE or AWS_ACCESS_KEY_ID")
        return session.client("pricing", region_name=region, config=_config())
    except BotoCoreError as exc:
        raise RunError(f"AWS Price List API: {exc}") from exc


def _session(region: str) -> "tuple[Session, str]":
    """A session and the region it is for. Raises SettingsError when nobody has named one."""
    from boto3 import Session

    session = Session()
    if not (region or session.region_name):
        raise SettingsError("no AWS region is known; set it, or AWS_DEFAULT_REGION", option="store.region")
    return session, region or session.region_name


def _config() -> "Config":
    from botocore.config import Config

    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
    )


def _s3_config(*, is_own_endpoint: bool) -> "Config":
    from botocore.config import Config

    # Links of the older signature do not open SSE-KMS objects. Left to itself botocore signs them for the
    # global host, which sends the browser on to the region, where the signature no longer fits.
    style: Literal["path", "virtual"] = "path" if is_own_endpoint else "virtual"
    return Config(signature_version="s3v4", s3={"addressing_style": style})
