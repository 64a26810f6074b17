"""Spot interruptions: polls the EC2 instance metadata service (IMDSv2) for the two-minute notice."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime

import httpx

from filmgate.settings import WorkerSettings
from filmgate.telemetry.logs import Log
from filmgate.telemetry.periodic import Periodic

_TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_NOTICE_PATH = "/latest/meta-data/spot/instance-action"
_INSTANCE_PATH = "/latest/meta-data/instance-id"
_TOKEN_SECONDS = 21600
_TIMEOUT_SECONDS = 2.0
# AWS recommends one request every five seconds.
_POLL_SECONDS = 5.0
# What is left of the two minutes for storing checkpoint or clip after the drain.
_UPLOAD_SECONDS = 20.0


class MetadataService:
    """IMDSv2: every request carries a token, which expires."""

    def __init__(self, endpoint: str) -> None:
        # Never through a proxy: the address is the instance itself.
        self._client = httpx.Client(base_url=endpoint, timeout=_TIMEOUT_SECONDS, trust_env=False)
        self._token = ""

    def close(self) -> None:
        self._client.close()

    def read_interruption(self) -> float | None:
        """When the instance will be interrupted, in seconds since 1970; None without a notice.

        Raises httpx.HTTPError when the service does not answer.
        """
        answer = self._get(_NOTICE_PATH)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        answer.raise_for_status()
        return datetime.fromisoformat(answer.json()["time"]).timestamp()

    def read_instance_id(self) -> str:
        """The EC2 instance. Raises httpx.HTTPError when the service does not answer."""
        return self._get(_INSTANCE_PATH).raise_for_status().text

    def _get(self, path: str) -> httpx.Response:
        if not self._token:
            self._token = self._new_token()
        answer = self._client.get(path, headers={"X-aws-ec2-metadata-token": self._token})
        if answer.status_code != httpx.codes.UNAUTHORIZED:
            return answer
        self._token = self._new_token()
        return self._client.get(path, headers={"X-aws-ec2-metadata-token": self._token})

    def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
        return self._client.put(_TOKEN_PATH, headers=headers).raise_for_status().text


class InterruptionWatch:
    """Drains the worker once, when there is a notice."""

    def __init__(self, service: MetadataService, drain: Callable[[float], None]) -> None:
        self._service = service
        self._drain = drain
        self._is_reachable = True
        self._log = Log("worker")
        self.interrupted_at: float | None = None

    def check(self) -> None:
        """Check for a notice. A service that does not answer is logged once until it answers again."""
        if self.interrupted_at is not None:
            return
        try:
            interrupted_at = self._service.read_interruption()
        except (httpx.HTTPError, ValueError, KeyError) as exc:
            if self._is_reachable:
                self._log.warning("cannot read spot notices; check worker.metadata_endpoint", error=exc)
            self._is_reachable = False
            return
        self._is_reachable = True
        if interrupted_at is None:
            return
        self.interrupted_at = interrupted_at
        seconds = max(0.0, interrupted_at - time.time() - _UPLOAD_SECONDS)
        self._log.warning("the instance will be interrupted; draining", seconds=round(seconds, 1))
        self._drain(seconds)


def read_instance_id(settings: WorkerSettings) -> str | None:
    """The EC2 instance of this process; None elsewhere, or if `worker.interruption` is off."""
    if settings.interruption == "off":
        return None
    try:
        with closing(MetadataService(settings.metadata_endpoint)) as service:
            return service.read_instance_id()
    except httpx.HTTPError as exc:
        Log("worker").warning("cannot read the instance id; check worker.metadata_endpoint", error=exc)
        return None


@contextmanager
def watched_interruptions(
    settings: WorkerSettings, drain: Callable[[float], None]
) -> Iterator[InterruptionWatch | None]:
    """Check for notices before the block and until it ends. Yields None if it is turned off."""
    if settings.interruption == "off":
        yield None
        return
    with closing(MetadataService(settings.metadata_endpoint)) as service:
        watch = InterruptionWatch(service, drain)
        # A worker that is started again on an interrupted instance must not lease a job.
        watch.check()
        with Periodic("spot notice", watch.check, _POLL_SECONDS):
            yield watch
