"""Server processes that a benchmark starts and observes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

STOP_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server process on loopback."""

    port: int
    pid: int


@contextmanager
def started_endpoint(module: str, *arguments: str) -> Iterator[Endpoint]:
    """Runs `python -m MODULE`, which prints its port on stdout, until the block ends."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Endpoint(int(process.stdout.readline()), process.pid)
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(psutil.Process(pid).memory_info().rss)


def cpu_seconds(pid: int) -> float:
    """User and system CPU time of a process, threads included."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
