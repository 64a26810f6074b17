"""Creates per second beside a bare endpoint, with event streams open, and memory over many creates.

The baseline is a FastAPI endpoint that does one durable INSERT. 0.25 x the baseline is enough: a job takes
minutes, so creating it is never the bottleneck. Both servers are processes on loopback with files in a
temporary folder. CPU time per create gives the same comparison when other work disturbs the clock.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.http_load import Connection, Target, creates_per_second
from benchmarks.processes import cpu_seconds, resident_bytes, started_server
from benchmarks.report import Figures, JsonFlag, print_report, run
from tests.server_process import COMMAND, ServerProcess

WATCHED_JOBS = 20


@dataclass(frozen=True, slots=True)
class Plan:
    """`rounds` rounds of `creates` each, then `soak` creates for memory."""

    creates: int = 1500
    rounds: int = 5
    soak: int = 100_000
    watchers: int = 500
    connections: int = 16


DEFAULT = Plan()


@dataclass(frozen=True, slots=True)
class Server:
    """A process under load."""

    target: Target
    pid: int


def main(
    creates: Annotated[int, typer.Option(min=50, help="Creates per round.")] = DEFAULT.creates,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; the median is reported.")] = DEFAULT.rounds,
    soak: Annotated[int, typer.Option(min=100, help="Creates for the memory figure.")] = DEFAULT.soak,
    watchers: Annotated[int, typer.Option(min=1, help="Event streams open at once.")] = DEFAULT.watchers,
    is_json: JsonFlag = False,
) -> None:
    """Create videos at Filmgate and at a bare endpoint, in turns."""
    plan = Plan(creates, rounds, soak, watchers)
    results, ratios = measure(plan)
    print_report("api", asdict(plan), results, ratios, is_json=is_json)


def measure(plan: Plan) -> tuple[Figures, Figures]:
    """Values and ratios of all three measurements."""
    with TemporaryDirectory() as folder, filmgate_server(Path(folder) / "filmgate") as filmgate:
        with started_server("-m", "benchmarks.bare_endpoint", f"{folder}/bare.db") as endpoint:
            bare = Server(Target(int(endpoint.line)), endpoint.pid)
            throughput, faster = asyncio.run(compare(filmgate, bare, plan))
        watching, watched = asyncio.run(watch(filmgate.target, plan))
        memory, growth = asyncio.run(soak(filmgate, plan))
    results = {"throughput": throughput, "watching": watching, "memory": memory}
    return results, faster | watched | growth


@contextmanager
def filmgate_server(folder: Path) -> Iterator[Server]:
    """`filmgate serve --no-worker` that never rejects a create."""
    folder.mkdir()
    settings = {
        "FILMGATE_ADMISSION__PROMISE_SECONDS": "1e12",
        "FILMGATE_LIMITS__MAX_CONNECTIONS_PER_ADDRESS": "0",
    }
    process = ServerProcess(folder, "--no-worker", model="flipbook", command=COMMAND, **settings)
    try:
        target = Target(int(process.url.rpartition(":")[2]), process.key)
        yield Server(target, process.process.pid)
    finally:
        process.stop()


async def compare(filmgate: Server, bare: Server, plan: Plan) -> tuple[dict[str, float], dict[str, float]]:
    """Creates per second and CPU milliseconds per create of both servers, in turns after a warm-up."""
    for server in (filmgate, bare):
        await creates_per_second(server.target, plan.creates // 5, plan.connections)
    rounds = [(await load(filmgate, plan), await load(bare, plan)) for _ in range(plan.rounds)]
    results = {
        "filmgate_per_second": median(rate for (rate, _), _ in rounds),
        "bare_per_second": median(rate for _, (rate, _) in rounds),
        "filmgate_cpu_ms": median(cpu for (_, cpu), _ in rounds),
        "bare_cpu_ms": median(cpu for _, (_, cpu) in rounds),
    }
    ratios = {
        "filmgate_to_bare": median(ours / bares for (ours, _), (bares, _) in rounds),
        "bare_to_filmgate_cpu": results["bare_cpu_ms"] / results["filmgate_cpu_ms"],
    }
    return results, ratios


async def load(server: Server, plan: Plan) -> tuple[float, float]:
    """Creates per second, and CPU milliseconds of the server per create."""
    before = cpu_seconds(server.pid)
    rate = await creates_per_second(server.target, plan.creates, plan.connections)
    return rate, (cpu_seconds(server.pid) - before) / plan.creates * 1e3


async def watch(target: Target, plan: Plan) -> tuple[dict[str, float], dict[str, float]]:
    """Creates per second without and with open event streams, in turns."""
    connection = await Connection.open(target.port)
    videos = [json.loads(await connection.send(target.create(n)))["id"] for n in range(WATCHED_JOBS)]
    connection.close()
    pairs: list[tuple[float, float]] = []
    for _ in range(plan.rounds):
        alone = await creates_per_second(target, plan.creates, plan.connections)
        async with asyncio.TaskGroup() as group:
            streams = [await open_stream(target, videos[n % len(videos)]) for n in range(plan.watchers)]
            readers = [group.create_task(stream.read_to_end()) for stream in streams]
            pairs.append((alone, await creates_per_second(target, plan.creates, plan.connections)))
            if any(reader.done() for reader in readers):
                raise RuntimeError("an event stream ended before its job did")
            for stream, reader in zip(streams, readers, strict=True):
                reader.cancel()
                stream.close()
    rates = {
        "alone_per_second": median(a for a, _ in pairs),
        "watched_per_second": median(w for _, w in pairs),
    }
    return rates, {"watched_to_alone": median(watched / alone for alone, watched in pairs)}


async def open_stream(target: Target, video_id: str) -> Connection:
    stream = await Connection.open(target.port)
    await stream.open_stream(target.watch(video_id))
    return stream


async def soak(filmgate: Server, plan: Plan) -> tuple[dict[str, int], dict[str, float]]:
    """Resident bytes of the server after the first third of the creates and after all of them."""
    first = plan.soak // 3
    await creates_per_second(filmgate.target, first, plan.connections)
    early = resident_bytes(filmgate.pid)
    await creates_per_second(filmgate.target, plan.soak - first, plan.connections)
    late = resident_bytes(filmgate.pid)
    return {"early_bytes": early, "late_bytes": late}, {"late_to_early_bytes": late / early}


if __name__ == "__main__":
    run(main)
