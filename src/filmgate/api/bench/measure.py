"""The three figures of `filmgate bench api`, each a ratio within one run."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from filmgate.api.bench.load import Connection, Target, creates_a_second
from filmgate.errors import RunError
from filmgate.tenants.local import KEY_FILE

_START_SECONDS = 30.0
_WATCHED_JOBS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: `rounds` turns of `creates` each, then `soak` creates for memory."""

    creates: int = 1500
    rounds: int = 5
    connections: int = 16
    soak: int = 100_000
    watchers: int = 500


@dataclass(frozen=True, slots=True)
class Throughput:
    """Creates a second of both, and the median of the ratios of each turn.

    The CPU time a create takes of each server says the same where other work disturbs the clock.
    """

    ours: float
    bare: float
    ours_to_bare: float
    ours_cpu_ms: float
    bare_cpu_ms: float

    @property
    def bare_to_ours_cpu(self) -> float:
        """What the ratio would be if only the processor set the pace."""
        return self.bare_cpu_ms / self.ours_cpu_ms


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of the server after the first tenth of the creates and after all of them."""

    creates: int
    early_bytes: int
    late_bytes: int

    @property
    def late_to_early(self) -> float:
        return self.late_bytes / self.early_bytes


@dataclass(frozen=True, slots=True)
class Watching:
    """Creates a second without and with watchers, in turns."""

    watchers: int
    alone: float
    watched: float
    watched_to_alone: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured."""

    throughput: Throughput
    watching: Watching
    memory: Memory


def measure(plan: Plan) -> Figures:
    """Both servers as processes of their own, on loopback, with files in a temporary folder."""
    with TemporaryDirectory() as folder, ours(Path(folder) / "ours") as (mine, pid):
        with bare(Path(folder) / "bare.db") as (theirs, bare_pid):
            throughput = asyncio.run(_compare((mine, pid), (theirs, bare_pid), plan))
        watching = asyncio.run(_watch(mine, plan))
        memory = asyncio.run(_soak(mine, pid, plan))
    return Figures(throughput, watching, memory)


async def _compare(mine: tuple[Target, int], theirs: tuple[Target, int], plan: Plan) -> Throughput:
    for target, _ in (mine, theirs):
        await creates_a_second(target, plan.creates // 5, plan.connections)
    own, yard = [], []
    for _ in range(plan.rounds):
        own.append(await _turn(*mine, plan))
        yard.append(await _turn(*theirs, plan))
    return Throughput(
        ours=median(rate for rate, _ in own),
        bare=median(rate for rate, _ in yard),
        ours_to_bare=median(mine[0] / bare[0] for mine, bare in zip(own, yard, strict=True)),
        ours_cpu_ms=median(cpu for _, cpu in own),
        bare_cpu_ms=median(cpu for _, cpu in yard),
    )


async def _turn(target: Target, pid: int, plan: Plan) -> tuple[float, float]:
    """Creates a second, and the milliseconds of CPU time the server spent on each."""
    before = cpu_seconds(pid)
    rate = await creates_a_second(target, plan.creates, plan.connections)
    return rate, (cpu_seconds(pid) - before) / plan.creates * 1e3


async def _watch(mine: Target, plan: Plan) -> Watching:
    connection = await Connection.open(mine.port)
    made = [json.loads(await connection.ask(mine.create(n)))["id"] for n in range(_WATCHED_JOBS)]
    connection.close()
    pairs: list[tuple[float, float]] = []
    for _ in range(plan.rounds):
        alone = await creates_a_second(mine, plan.creates, plan.connections)
        async with asyncio.TaskGroup() as group:
            streams = [await _open_stream(mine, made[n % len(made)]) for n in range(plan.watchers)]
            readers = [group.create_task(stream.drain()) for stream in streams]
            pairs.append((alone, await creates_a_second(mine, plan.creates, plan.connections)))
            if any(reader.done() for reader in readers):
                raise RunError("an event stream ended before its job did")
            for stream, reader in zip(streams, readers, strict=True):
                reader.cancel()
                stream.close()
    ratio = median(watched / alone for alone, watched in pairs)
    return Watching(plan.watchers, median(a for a, _ in pairs), median(w for _, w in pairs), ratio)


async def _open_stream(mine: Target, video_id: str) -> Connection:
    stream = await Connection.open(mine.port)
    await stream.start_stream(mine.watch(video_id))
    return stream


async def _soak(mine: Target, pid: int, plan: Plan) -> Memory:
    first = max(plan.soak // 10, 1)
    await creates_a_second(mine, first, plan.connections)
    early = resident_bytes(pid)
    await creates_a_second(mine, plan.soak - first, plan.connections)
    return Memory(plan.soak, early, resident_bytes(pid))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, from /proc."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its threads, user and system, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def ours(data: Path) -> Iterator[tuple[Target, int]]:
    """`filmgate serve --no-worker` with nothing between it and the disk but its own code."""
    port = _free_port()
    command = [sys.executable, "-m", "filmgate", "serve", "--no-worker", "--port", str(port)]
    given = {"FILMGATE_DATA": str(data), "FILMGATE_ADMISSION__PROMISE_SECONDS": "1e12"}
    with _process(command, port, given | {"FILMGATE_STORE__MIN_FREE_BYTES": "0"}) as pid:
        yield Target(port, (data / KEY_FILE).read_text().strip()), pid


@contextmanager
def bare(path: Path) -> Iterator[tuple[Target, int]]:
    """The yardstick, as a process of its own."""
    port = _free_port()
    command = [sys.executable, "-m", "filmgate.api.bench.bare", str(path), str(port)]
    with _process(command, port, {}) as pid:
        yield Target(port), pid


@contextmanager
def _process(command: list[str], port: int, given: dict[str, str]) -> Iterator[int]:
    process = subprocess.Popen(command, env=os.environ | given, stderr=subprocess.DEVNULL)
    try:
        _await_port(process, port)
        yield process.pid
    finally:
        process.terminate()
        process.wait(_START_SECONDS)


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RunError(f"the server did not start; run `{' '.join(process.args)}`")  # type: ignore[arg-type]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
