"""Opens every boto3 client. Only filmgate.aws imports boto3, and only when a client is opened or fails."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

from filmgate.aws.errors import AwsFailure, FailureKind
from filmgate.errors import SettingsError
from filmgate.telemetry.findings import INSTALL_AWS
from filmgate.telemetry.trace_context import current_trace, xray_header

if TYPE_CHECKING:
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config
    from botocore.credentials import RefreshableCredentials
    from mypy_boto3_s3 import S3Client

BOTO3_MISSING = f"boto3 is not installed; {INSTALL_AWS}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a client connects. An empty region or URL means what boto3 finds in the environment.

    `region_setting` is the setting that gives the region; leave it empty if the client works without one.
    """

    region: str = ""
    url: str = ""
    region_setting: str = ""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Timeouts, attempts and connections of one client. `max_attempts` counts the first request too."""

    connect_seconds: float = 5.0
    read_seconds: float = 30.0
    max_attempts: int = 4
    max_connections: int = 32


# Credentials of a session that botocore renews; opaque outside of this package.
SessionCredentials: TypeAlias = "RefreshableCredentials"
DEFAULT_OPTIONS = ClientOptions()


def has_boto3() -> bool:
    """Whether the `aws` extra is installed."""
    return find_spec("boto3") is not None


def check_boto3(option: str) -> None:
    """Raises SettingsError, with the remedy, when the `aws` extra is not installed."""
    if not has_boto3():
        raise SettingsError(BOTO3_MISSING, option=option)


def has_credentials() -> bool:
    """Whether boto3 finds credentials in the environment. Raises SettingsError for a broken AWS profile."""
    from boto3 import Session

    with _opening(None):
        return Session().get_credentials() is not None


def open_s3(
    endpoint: Endpoint,
    options: ClientOptions | None = None,
    *,
    is_signing_links: bool = False,
    is_verified_by_caller: bool = False,
    credentials: "SessionCredentials | None" = None,
) -> "S3Client":
    """Opens an S3 client.

    `is_signing_links` prepares it for presigned links. `is_verified_by_caller` skips boto3's checksum of
    downloads, which costs a CPU core and is redundant where the caller checks digests.
    """
    from botocore.config import Config

    config = _config(options)
    if is_signing_links:
        # Links with the older signature do not open SSE-KMS objects.
        config = config.merge(Config(signature_version="s3v4"))
    if endpoint.url:
        config = config.merge(Config(s3={"addressing_style": "path"}))
    elif is_signing_links:
        # By default botocore signs links for the global host. It redirects to the region's host, where the
        # signature is not valid.
        config = config.merge(Config(s3={"addressing_style": "virtual"}))
    if is_verified_by_caller:
        config = config.merge(Config(response_checksum_validation="when_required"))
    client: S3Client = _open("s3", endpoint, config, credentials)
    return client


def open_client(
    service: str,
    endpoint: Endpoint,
    options: ClientOptions | None = None,
    credentials: "SessionCredentials | None" = None,
) -> Any:
    """Opens a client of a service other than S3, by its name in boto3."""
    return _open(service, endpoint, _config(options), credentials)


def upload_config(threads: int, part_bytes: int) -> "TransferConfig":
    """The `Config` argument of `upload_file`: parts of this size, sent on this many threads."""
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        max_concurrency=threads, multipart_threshold=part_bytes, multipart_chunksize=part_bytes
    )


def _config(options: ClientOptions | None) -> "Config":
    from botocore.config import Config

    options = options or DEFAULT_OPTIONS
    return Config(
        connect_timeout=options.connect_seconds,
        read_timeout=options.read_seconds,
        retries={"mode": "standard", "total_max_attempts": options.max_attempts},
        max_pool_connections=options.max_connections,
    )


def _open(
    service: str,
    endpoint: Endpoint,
    config: "Config",
    credentials: "SessionCredentials | None" = None,
) -> Any:
    setting = endpoint.region_setting
    with _opening(setting or None):
        session = _open_session(credentials)
        region = endpoint.region or session.region_name
        if setting and not region:
            raise SettingsError(f"no AWS region is set; set {setting} or AWS_DEFAULT_REGION", option=setting)
        client = session.client(service, region_name=region, endpoint_url=endpoint.url or None, config=config)
        client.meta.events.register("before-call", _send_trace_id)
        client.meta.events.register("needs-retry", partial(_count_throttle, service))
        return client


def _open_session(credentials: "SessionCredentials | None") -> Any:
    """A session with these credentials, or with the credentials of this process."""
    from boto3 import Session
    from botocore.session import get_session

    own, loader = get_session(), _loader()
    own.register_component("data_loader", loader)
    if credentials is not None:
        own.register_component("credential_provider", _only(credentials))
    paths = len(loader.search_paths)
    session = Session(botocore_session=own)
    del loader.search_paths[paths:]  # each session adds a path of boto3's, which no client needs
    return session


@cache
def _loader() -> Any:
    """The descriptions of AWS services, parsed once: a client per tenant would parse megabytes of JSON."""
    from botocore.loaders import create_loader
    from botocore.session import get_session

    return create_loader(get_session().get_config_variable("data_path"))


def _only(credentials: "SessionCredentials") -> Any:
    from botocore.credentials import CredentialProvider, CredentialResolver

    class Given(CredentialProvider):
        METHOD = "given"

        def load(self) -> "SessionCredentials":
            return credentials

    return CredentialResolver([Given()])


def _count_throttle(service: str, response: "tuple[Any, dict[str, Any]] | None" = None, **_: object) -> None:
    """Called by botocore after every attempt, before it decides whether to try again."""
    from filmgate.telemetry.metrics import count_throttle  # `filmgate --help` needs no metrics

    code = str(response[1].get("Error", {}).get("Code", "")) if response is not None else ""
    if code and AwsFailure.from_code(service, "", code).kind is FailureKind.THROTTLED:
        count_throttle(service)


def _send_trace_id(params: dict[str, Any], **_: object) -> None:
    """AWS services continue the trace: X-Ray shows them, and CloudTrail records the id. It is not signed."""
    if (trace := current_trace()) is not None:
        params["headers"]["X-Amzn-Trace-Id"] = xray_header(trace)


@contextmanager
def _opening(option: str | None) -> Iterator[None]:
    """Raises SettingsError for an AWS profile, a region or an endpoint that boto3 cannot use."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, ValueError) as exc:
        raise SettingsError(f"boto3 cannot open an AWS client: {exc}", option=option) from exc
