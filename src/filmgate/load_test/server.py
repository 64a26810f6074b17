"""The server of a load test: `filmgate serve` with a worker, on loopback, in its own folder."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filmgate.database import open_database
from filmgate.errors import UsageError
from filmgate.jobs import Job, JobId, TenantId
from filmgate.scheduling import open_reader
from filmgate.settings import StoreSettings, load_settings
from filmgate.store.keys import open_keys
from filmgate.tenants.base import LOCAL_TENANT, Tenant
from filmgate.tenants.local import KEY_FILE
from filmgate.tenants.registry import TenantRegistry

START_SECONDS = 900.0
_STOP_SECONDS = 60.0
_ADDRESS = re.compile(r"Filmgate is listening on (\S+)")
# A load test is one caller with many requests, and it may queue for longer than any promise.
_UNLIMITED = {
    "FILMGATE_LIMITS__TENANT_REQUESTS_PER_SECOND": "0",
    "FILMGATE_LIMITS__ADDRESS_REQUESTS_PER_SECOND": "0",
    "FILMGATE_LIMITS__MAX_WATCHERS_PER_TENANT": "0",
    "FILMGATE_ADMISSION__PROMISE_SECONDS": "1e9",
    "FILMGATE_ADMISSION__SCALE_FROM_ZERO": "*",
}
# Not those of the installation: this server has another database, and would delete their objects as orphans.
_OWN_STORE = {
    "FILMGATE_STORE__URL": "",
    "FILMGATE_STORE__KEYRING": "",
    "FILMGATE_STORE__TENANT_ROLE": "",
    "FILMGATE_AUDIT__ANCHOR": "",
    "FILMGATE_AUDIT__SIGNING_KEY": "",
}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: its address, and one key per tenant that sends requests.

    `data` and `tenants` are known of a server that this process started.
    """

    url: str
    keys: tuple[str, ...]
    tenants: tuple[TenantId, ...] = ()
    data: Path | None = None

    def with_tenants(self, count: int) -> "Server":
        """The server with `count` tenants in all. New ones are added to its database."""
        if count == len(self.keys):
            return self
        assert self.data is not None
        names = tuple(TenantId(f"load-test-{number}") for number in range(len(self.keys) + 1, count + 1))
        with closing(open_database(load_settings().queue, self.data)) as database:
            registry = TenantRegistry(database)
            keys = tuple(registry.add(Tenant(name)).secret for name in names)
        return replace(self, keys=self.keys + keys, tenants=self.tenants + names)

    def read_jobs(self, videos: Sequence[tuple[int, str]]) -> list[Job]:
        """Jobs by the number of their tenant and their id, from the database in the data folder."""
        if self.data is None:
            return []
        with closing(open_database(load_settings().queue, self.data)) as database:
            reader = open_reader(database, open_keys(StoreSettings(), self.data))
            return [reader.find(self.tenants[tenant], JobId(video)) for tenant, video in videos]


@contextmanager
def started_server(
    models: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server and its worker until the block ends. Raises UsageError with the end of its log."""
    data, log = folder / "data", folder / "serve.log"
    command = [sys.executable, "-m", "filmgate", "serve", "--port", "0", "--data", str(data)]
    command += [part for model in models for part in ("--model", model)]
    variables = {**os.environ, **_UNLIMITED, **_OWN_STORE, **_own_waker(), **(environ or {})}
    with (
        _ended_by_sigterm(),
        log.open("wb") as output,
        subprocess.Popen(command, env=variables, stderr=output, stdout=output) as process,
    ):
        try:
            url = _wait_for_address(process, log)
            yield Server(url, (_read_key(data / KEY_FILE),), (LOCAL_TENANT,), data)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _own_waker() -> dict[str, str]:
    """No messages of the installation's SQS queue."""
    return {} if load_settings().queue.waker in ("poll", "notify") else {"FILMGATE_QUEUE__WAKER": "poll"}


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the server too: by default it ends only this process, without cleaning up."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _read_key(path: Path) -> str:
    """The key of the tenant `local`. Raises UsageError: a server creates it only in an empty database."""
    if not path.exists():
        message = "the database has tenants already; use an empty one, or --url and --key-file"
        raise UsageError(message, option="queue.url")
    return path.read_text().strip()


def _wait_for_address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and process.poll() is None:
        if match := _ADDRESS.search(log.read_text(errors="replace")):
            return match[1]
        time.sleep(0.1)
    raise UsageError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
