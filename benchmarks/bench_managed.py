"""Memory, threads and CPU of one managed worker that waits for hundreds of provider jobs at once.

The worker and the provider are separate processes; queue and store are real files. The baseline is the same
worker before its first job.
"""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import psutil
import typer

from benchmarks.processes import STOP_SECONDS, cpu_seconds, resident_bytes, started_server
from benchmarks.queue_databases import SPEC, make_ticket
from benchmarks.report import Figures, JsonFlag, print_report, run
from filmgate.database import open_database
from filmgate.jobs import JobState, ManagedPolicy, Route, TenantId
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.settings import QueueSettings, StoreSettings
from filmgate.store.keys import open_keys
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.waiting import wait_until

TENANT = TenantId("bench")
IDLE_SECONDS = 2.0  # from the worker's first line to a steady amount of memory
WAIT_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The queue and its reader, the provider's address and the worker's process id."""

    queue: JobQueue
    reader: JobReader
    provider_url: str
    worker_pid: int

    def stats(self) -> dict[str, int]:
        stats: dict[str, int] = json.loads(fetch(f"{self.provider_url}/stats"))
        return stats

    def count(self, *states: JobState) -> int:
        return sum(count.jobs for count in self.reader.backlog().counts if count.state in states)


def main(
    jobs: Annotated[int, typer.Option(min=1, help="Provider jobs to wait for at once.")] = 300,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to observe the waiting worker.")] = 20.0,
    is_json: JsonFlag = False,
) -> None:
    """Observe a managed worker while it waits for a provider."""
    results = measure(jobs, seconds)
    ratios = {"waiting_to_idle_bytes": round(results["waiting_bytes"] / results["idle_bytes"], 3)}
    settings = {"jobs": jobs, "seconds": seconds}
    print_report("managed", settings, results, ratios, is_json=is_json)


def measure(jobs: int, seconds: float) -> Figures:
    """Start a worker, enqueue the jobs, observe it while it waits, then complete all videos at once."""
    with TemporaryDirectory() as folder, started_worker(Path(folder), jobs) as setup:
        time.sleep(IDLE_SECONDS)
        idle_bytes = resident_bytes(setup.worker_pid)
        began = time.monotonic()
        for number in range(jobs):
            spec = replace(SPEC, seed=number)
            setup.queue.enqueue(
                replace(make_ticket(number), tenant_id=TENANT, spec=spec, route=Route.MANAGED)
            )
        wait_until(lambda: setup.stats()["videos"] == setup.count(JobState.RUNNING) == jobs, WAIT_SECONDS)
        start_seconds = time.monotonic() - began
        waiting = observe(setup, seconds)
        began = time.monotonic()
        fetch(f"{setup.provider_url}/release", b"{}")
        wait_until(lambda: setup.count(JobState.RUNNING, JobState.QUEUED) == 0, WAIT_SECONDS)
        return {
            "provider_jobs": setup.stats()["videos"],
            "idle_bytes": idle_bytes,
            **waiting,
            "bytes_per_job": round((waiting["waiting_bytes"] - idle_bytes) / jobs, 1),
            "peak_bytes": peak_bytes(setup.worker_pid),
            "start_seconds": round(start_seconds, 3),
            "collect_seconds": round(time.monotonic() - began, 3),
        }


def observe(setup: Setup, seconds: float) -> dict[str, float]:
    """Memory, threads, CPU and polls of the worker while it waits."""
    polls, cpu, since = setup.stats()["polls"], cpu_seconds(setup.worker_pid), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - since
    return {
        "waiting_bytes": resident_bytes(setup.worker_pid),
        "threads": psutil.Process(setup.worker_pid).num_threads(),
        "waiting_cpu_share": round((cpu_seconds(setup.worker_pid) - cpu) / elapsed, 4),
        "polls_per_second": round((setup.stats()["polls"] - polls) / elapsed, 2),
    }


@contextmanager
def started_worker(data: Path, jobs: int) -> Iterator[Setup]:
    """A managed worker process and its provider."""
    database = open_database(QueueSettings(), data)
    try:
        TenantRegistry(database).add(Tenant(TENANT, managed=ManagedPolicy(is_allowed=True)))
        keys = open_keys(StoreSettings(), data)
        queue, reader = open_queue(database, keys, QueueSettings()), open_reader(database, keys)
        with started_server("-m", "benchmarks.slow_provider") as provider:
            url = f"http://127.0.0.1:{provider.line}"
            environ = {
                "FILMGATE_DATA": str(data),
                "FILMGATE_PROVIDER__KIND": "http",
                "FILMGATE_PROVIDER__URL": f"{url}/v1",
                "FILMGATE_PROVIDER__MAX_JOBS": str(jobs),
            }
            command = [sys.executable, "-m", "filmgate", "worker", "--managed", "--model", "bench"]
            with (data / "worker.log").open("wb") as log:
                worker = subprocess.Popen(command, env=os.environ | environ, stdout=log, stderr=log)
            try:
                wait_until(lambda: "ready" in (data / "worker.log").read_text(), WAIT_SECONDS)
                yield Setup(queue, reader, url, worker.pid)
            finally:
                worker.terminate()
                worker.wait(STOP_SECONDS)
    finally:
        database.close()


def fetch(url: str, body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, body, timeout=10) as response:
        data: bytes = response.read()
    return data


def peak_bytes(pid: int) -> int:
    """The highest resident memory of a process so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    run(main)
