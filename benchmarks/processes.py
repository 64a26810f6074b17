"""Server processes that a benchmark starts and observes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

STOP_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Started:
    """A server process on loopback, and the line that it printed: its port or its URL."""

    line: str
    pid: int


@contextmanager
def started_server(*arguments: str) -> Iterator[Started]:
    """Runs `python ARGUMENTS`, which prints one line when it listens, until the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield Started(process.stdout.readline().strip(), process.pid)
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
