"""The figures of `filmgate bench managed`: the real worker process, a provider process, real files."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from filmgate.database import Database, open_database
from filmgate.errors import RunError
from filmgate.jobs import (
    Idempotency,
    JobState,
    ManagedPolicy,
    Route,
    StageSeconds,
    TenantId,
    Ticket,
    VideoSpec,
)
from filmgate.scheduling import open_queue
from filmgate.scheduling.base import JobQueue
from filmgate.settings import QueueSettings, StoreSettings
from filmgate.store.keys import open_keys
from filmgate.tenants import open_tenants
from filmgate.tenants.base import Tenant

_TENANT = TenantId("bench")
_PATIENCE_SECONDS = 240.0
_SPEC = VideoSpec(model="bench", prompt="a red ball", width=1280, height=720, seconds=5.0, fps=24, seed=1)


@dataclass(frozen=True, slots=True)
class Figures:
    """One process that waits for `jobs` provider jobs at once."""

    jobs: int
    provider_jobs: int
    idle_bytes: int
    waiting_bytes: int
    peak_bytes: int
    threads: int
    bytes_a_job: float
    waiting_cpu_share: float
    polls_a_second: float
    start_seconds: float
    collect_seconds: float


@dataclass(frozen=True, slots=True)
class Site:
    """The queue the worker works on, the provider it asks, and the worker itself."""

    queue: JobQueue
    address: str
    pid: int

    def stats(self) -> dict[str, int]:
        answer: dict[str, int] = json.loads(_call(f"{self.address}/stats"))
        return answer

    def count(self, state: JobState) -> int:
        return sum(load.jobs for load in self.queue.backlog().loads if load.state is state)


def measure(jobs: int, waiting_seconds: float) -> Figures:
    """Start a worker, give it this many jobs, watch it wait, then let every clip be ready at once."""
    with TemporaryDirectory() as folder, _site(Path(folder), jobs) as site:
        _wait_until(lambda: _read(site.pid, "VmRSS") > 0)
        time.sleep(2.0)
        idle = _read(site.pid, "VmRSS")
        began = time.monotonic()
        for number in range(jobs):
            site.queue.enqueue(_ticket(number))
        _wait_until(lambda: site.stats()["videos"] == jobs and site.count(JobState.RUNNING) == jobs)
        start_seconds = time.monotonic() - began
        polls, cpu, since = site.stats()["polls"], _cpu_seconds(site.pid), time.monotonic()
        time.sleep(waiting_seconds)
        elapsed = time.monotonic() - since
        cpu_share = (_cpu_seconds(site.pid) - cpu) / elapsed
        polls_a_second = (site.stats()["polls"] - polls) / elapsed
        waiting, threads = _read(site.pid, "VmRSS"), _read(site.pid, "Threads")
        began = time.monotonic()
        _call(f"{site.address}/release", b"{}")
        _wait_until(lambda: site.count(JobState.RUNNING) + site.count(JobState.QUEUED) == 0)
        return Figures(
            jobs=jobs,
            provider_jobs=site.stats()["videos"] - 1,  # the release made one too
            idle_bytes=idle,
            waiting_bytes=waiting,
            peak_bytes=_read(site.pid, "VmHWM"),
            threads=threads,
            bytes_a_job=round((waiting - idle) / jobs, 1),
            waiting_cpu_share=round(cpu_share, 4),
            polls_a_second=round(polls_a_second, 2),
            start_seconds=round(start_seconds, 3),
            collect_seconds=round(time.monotonic() - began, 3),
        )


def _ticket(number: int) -> Ticket:
    ticket = Ticket(
        tenant_id=_TENANT,
        spec=replace(_SPEC, seed=number),
        predicted=StageSeconds(denoise=10.0),
        slo_seconds=90.0,
        idempotency=Idempotency(f"digest-{number}"),
    )
    return replace(ticket, route=Route.MANAGED)


@contextmanager
def _site(data: Path, jobs: int) -> Iterator[Site]:
    database = open_database(QueueSettings(), data)
    try:
        open_tenants(database).add(Tenant(_TENANT, managed=ManagedPolicy(is_allowed=True)))
        with _process([sys.executable, "-m", f"{__package__}.endpoint"], {}) as provider:
            assert provider.stdout is not None
            address = f"http://127.0.0.1:{int(provider.stdout.readline())}"
            command = [sys.executable, "-m", "filmgate", "worker", "--managed", "--model", "bench"]
            environ = {
                "FILMGATE_DATA": str(data),
                "FILMGATE_FALLBACK__PROVIDER": "http",
                "FILMGATE_FALLBACK__URL": f"{address}/v1",
                "FILMGATE_FALLBACK__MAX_JOBS": str(jobs),
            }
            with _process(command, environ) as worker:
                yield Site(_open_queue(database, data), address, worker.pid)
    finally:
        database.close()


def _open_queue(database: Database, data: Path) -> JobQueue:
    return open_queue(database, open_keys(StoreSettings(), data), QueueSettings())


@contextmanager
def _process(command: list[str], environ: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command, env=os.environ | environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def _wait_until(is_so: Callable[[], bool]) -> None:
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > ends:
            raise RunError("the managed worker did not get there; run `filmgate worker --managed` by hand")
        time.sleep(0.1)


def _call(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, body, timeout=10) as answer:  # noqa: S310 - our own child's address
        data: bytes = answer.read()
    return data


def _read(pid: int, field: str) -> int:
    """A line of /proc/PID/status; sizes in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            number, *unit = value.split()
            return int(number) * (1024 if unit else 1)
    return 0


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
