"""Two honest tenants beside attackers of every kind: latency, memory, 5xx and lost jobs, idle and besieged.

`make siege` runs it for five minutes against `filmgate serve` with default settings and a worker that renders
a test pattern. The honest tenants create a video every quarter of a second, follow each one to its end and
check the health of the server every 50 ms, first alone, then beside `benchmarks.attackers`. Another tenant
has a job whose key cannot be used.

Prints the figures beside their limits and exits with 1 when one is broken. Everything runs on one machine. In
reality attackers do not compete with the server for its cores, so they have a lower priority: it decides who
waits for a core, not what reaches the server.
"""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import typer

from benchmarks.processes import resident_bytes
from benchmarks.report import Figures, JsonFlag, print_report, run
from filmgate.database import open_database
from filmgate.jobs import TenantId
from filmgate.planner.percentiles import percentile
from filmgate.settings import LimitSettings, Settings, with_values
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.serve_with_public_host import ADDRESS
from tests.server_process import ServerProcess
from tests.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_HONEST = ("honest-one", "honest-two")
_HEALTH_SECONDS = 0.05
_CREATE_SECONDS = 0.25
_POLL_SECONDS = 0.1
_FAILED_REQUEST = re.compile(
    r'^filmgate_http_requests_total\{method="(\S+?)",route="(.+?)",status="(5\d\d)"\} (\S+)$'
)


@dataclass(frozen=True, slots=True)
class Plan:
    """`idle_seconds` alone, then `seconds` beside the attackers. A job is late after `late_seconds`.

    An attacker pauses for `pause_seconds` between two attacks, on average.
    """

    seconds: float = 300.0
    idle_seconds: float = 30.0
    late_seconds: float = 90.0
    pause_seconds: float = 1.0


DEFAULT = Plan()
_RATIOS = ("health_p50", "health_p99", "create_p50", "create_p99")
# The p99 may be this many times the idle one.
_MAX_RATIO = 5.0
_MAX_MEMORY_MB = 400.0


@dataclass
class Experience:
    """What the honest tenants saw."""

    health: list[float] = field(default_factory=list)
    create: list[float] = field(default_factory=list)
    completed: int = 0
    late: int = 0
    lost: int = 0
    refused: int = 0

    def figures(self) -> dict[str, float]:
        return {
            "health_p50_ms": percentile(self.health, 0.50) * 1e3,
            "health_p99_ms": percentile(self.health, 0.99) * 1e3,
            "create_p50_ms": percentile(self.create, 0.50) * 1e3,
            "create_p99_ms": percentile(self.create, 0.99) * 1e3,
            "creates": len(self.create),
            "completed": self.completed,
            "late": self.late,
            "lost": self.lost,
            "refused": self.refused,
        }


def main(
    seconds: Annotated[float, typer.Option(min=2, help="Length of the siege.")] = DEFAULT.seconds,
    idle_seconds: Annotated[float, typer.Option(min=1, help="Before it.")] = DEFAULT.idle_seconds,
    pause_seconds: Annotated[
        float, typer.Option(min=0, help="Of an attacker, between two attacks.")
    ] = DEFAULT.pause_seconds,
    is_json: JsonFlag = False,
) -> None:
    """Serve two honest tenants, alone and beside attackers of every kind."""
    plan = Plan(seconds, idle_seconds, pause_seconds=pause_seconds)
    results, ratios = measure(plan)
    verdicts = judge(results, ratios)
    broken = [verdict.name for verdict in verdicts if not verdict.is_kept]
    if is_json:
        print_report("siege", asdict(plan), results | {"broken": broken}, ratios, is_json=True)
    else:
        print_table(results)
        print_verdicts(verdicts)
    if broken:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure and its limit."""

    name: str
    value: float
    limit: float

    @property
    def is_kept(self) -> bool:
        return self.value <= self.limit


def judge(results: Figures, ratios: Figures) -> list[Verdict]:
    """What the siege must show."""
    besieged = results["besieged"]
    return [
        Verdict("health p99, besieged to idle", ratios["health_p99"], _MAX_RATIO),
        Verdict("create p99, besieged to idle", ratios["create_p99"], _MAX_RATIO),
        Verdict("memory of the server, MB", besieged["max_memory_mb"], _MAX_MEMORY_MB),
        Verdict("honest jobs late", besieged["late"], 0),
        Verdict("honest jobs lost", besieged["lost"], 0),
        Verdict("honest creates refused", besieged["refused"], 0),
        Verdict("responses with 5xx", sum(results["responses_5xx"].values()), 0),
    ]


def measure(plan: Plan) -> tuple[dict[str, Any], Figures]:
    """The figures of both phases, and besieged to idle."""
    with TemporaryDirectory() as folder, started_site(Path(folder)) as site:
        keys = [site.add_tenant(name) for name in _HONEST]
        site.finish_video(site.process.key)  # caches and the worker are warm then
        site.break_a_key()
        idle = asyncio.run(observe(site.url, keys, plan.idle_seconds, plan))
        memory = Memory(site.process.process.pid)
        with started_attackers(site, plan.pause_seconds) as attackers:
            besieged = asyncio.run(observe(site.url, keys, plan.seconds, plan, memory))
        errors = site.count_5xx()
    alone, beside = idle.figures(), besieged.figures() | {"max_memory_mb": memory.max_bytes / 1e6}
    results = {"idle": alone, "besieged": beside, "responses_5xx": errors, "attacks": attackers}
    return results, {name: beside[f"{name}_ms"] / alone[f"{name}_ms"] for name in _RATIOS}


@dataclass
class Site:
    """A server process, its worker and its tenants."""

    process: ServerProcess
    settings: Settings
    slow_servers: socket.socket

    @property
    def url(self) -> str:
        return str(self.process.url)

    def add_tenant(self, name: str) -> str:
        database = open_database(self.settings.queue, self.settings.data)
        try:
            return TenantRegistry(database).add(Tenant(TenantId(name))).secret
        finally:
            database.close()

    def finish_video(self, key: str, **fields: object) -> str:
        """Create a video and wait until it is completed."""
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=self.url, headers=headers, timeout=60) as client:
            video = str(client.post("/v1/videos", json={"prompt": "x", **fields}).json()["id"])
            wait_until(lambda: client.get(f"/v1/videos/{video}").json()["status"] == "completed")
        return video

    def break_a_key(self) -> None:
        """Queue a job of a tenant whose key no process accepts any more."""
        headers = {"Authorization": f"Bearer {self.add_tenant('unlucky')}"}
        body = {"prompt": "x", "seconds": "1"}
        httpx.post(f"{self.url}/v1/videos", json=body, headers=headers, timeout=60).raise_for_status()
        (self.settings.data / "keys" / "unlucky.key").chmod(0o644)

    def count_5xx(self) -> dict[str, int]:
        """The 5xx responses that the server has counted, by method, route and status."""
        headers = {"Authorization": f"Bearer {self.process.key}"}
        lines = httpx.get(f"{self.url}/metrics", headers=headers, timeout=60).text.splitlines()
        found = (match for line in lines if (match := _FAILED_REQUEST.match(line)))
        return {" ".join(match.group(1, 2, 3)): int(float(match[4])) for match in found}


@dataclass
class Memory:
    """The largest resident memory of a process that was seen."""

    pid: int
    max_bytes: int = 0

    def sample(self) -> None:
        self.max_bytes = max(self.max_bytes, resident_bytes(self.pid))


@contextmanager
def started_site(folder: Path) -> Iterator[Site]:
    """`filmgate serve` with default limits, and a worker that renders a test pattern."""
    limits = LimitSettings()
    environ = {
        "FILMGATE_ADMISSION__MODELS_FILE": str(_ROOT / "tests/pattern.toml"),
        "FILMGATE_LIMITS__TENANT_REQUESTS_PER_SECOND": str(limits.tenant_requests_per_second),
        "FILMGATE_LIMITS__ADDRESS_REQUESTS_PER_SECOND": str(limits.address_requests_per_second),
    }
    slow_servers = socket.create_server((ADDRESS, 0))
    launcher = [sys.executable, "-m", "tests.serve_with_public_host", str(slow_servers.getsockname()[1])]
    command = [*launcher, "serve", "--port", "0"]
    process = ServerProcess(folder, "--no-worker", model="pattern", command=command, **environ)
    worker = None
    try:
        process.wait_for_log("Filmgate is listening")
        settings = with_values(Settings(), {"data": folder / "data"})
        command = [sys.executable, str(_ROOT / "tests/chaos/pattern_worker.py"), "--pace=0.001"]
        variables = {"FILMGATE_DATA": str(folder / "data"), "PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin"}
        with (folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=folder)
        yield Site(process, settings, slow_servers)
    finally:
        if worker is not None:
            worker.kill()
            worker.wait()
        process.stop()
        slow_servers.close()


@contextmanager
def started_attackers(site: Site, pause_seconds: float) -> Iterator[dict[str, int]]:
    """`benchmarks.attackers` until the block ends; then the dictionary has the attacks by kind."""
    key, flood_key = site.add_tenant("hostile"), site.add_tenant("flooding")
    video, counts = site.finish_video(key, seconds="25"), dict[str, int]()
    descriptor = site.slow_servers.fileno()
    port = site.url.rpartition(":")[2]
    command = [sys.executable, "-m", "benchmarks.attackers", port, key, flood_key, video]
    with subprocess.Popen(
        [*command, str(descriptor), str(pause_seconds)],
        stdin=PIPE,
        stdout=PIPE,
        text=True,
        cwd=_ROOT,
        pass_fds=[descriptor],
    ) as attackers:
        assert attackers.stdout is not None
        try:
            if attackers.stdout.readline() != "ready\n":
                raise RuntimeError("the attackers did not start")
            yield counts
        finally:
            counts.update(json.loads(attackers.communicate(timeout=60)[0]))


async def observe(
    url: str, keys: list[str], seconds: float, plan: Plan, memory: Memory | None = None
) -> Experience:
    """What the honest tenants see for this long."""
    seen, until = Experience(), time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for key in keys:
            headers = {"Authorization": f"Bearer {key}"}
            client = httpx.AsyncClient(base_url=url, headers=headers, timeout=60)
            group.create_task(_create(client, seen, until, plan))
        group.create_task(_check_health(url, seen, until, memory))
    return seen


async def _check_health(url: str, seen: Experience, until: float, memory: Memory | None) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        while time.monotonic() < until:
            started = time.perf_counter()
            (await client.get("/healthz")).raise_for_status()
            seen.health.append(time.perf_counter() - started)
            if memory is not None:
                memory.sample()
            await asyncio.sleep(_HEALTH_SECONDS)


async def _create(client: httpx.AsyncClient, seen: Experience, until: float, plan: Plan) -> None:
    async with client, asyncio.TaskGroup() as followers:
        while time.monotonic() < until:
            started = time.perf_counter()
            response = await client.post("/v1/videos", json={"prompt": "a red ball"})
            if response.status_code == 200:
                seen.create.append(time.perf_counter() - started)
                followers.create_task(_follow(client, response.json()["id"], seen, plan.late_seconds))
            else:
                seen.refused += 1
            await asyncio.sleep(_CREATE_SECONDS)


async def _follow(client: httpx.AsyncClient, video_id: str, seen: Experience, late_seconds: float) -> None:
    """Wait for the end of a video."""
    started = time.monotonic()
    while time.monotonic() - started < 2 * late_seconds:
        response = await client.get(f"/v1/videos/{video_id}")
        status = response.json().get("status") if response.status_code == 200 else None
        if status == "completed":
            seen.completed += 1
            seen.late += time.monotonic() - started > late_seconds
            return
        if status == "failed" or response.status_code == 404:
            break
        await asyncio.sleep(_POLL_SECONDS)
    seen.lost += 1


def print_table(results: Figures) -> None:
    """The figures of both phases side by side, and the attacks by kind."""
    idle, besieged = results["idle"], results["besieged"]
    for kind, count in (results["responses_5xx"] | results["attacks"]).items():
        print(f"{kind:32}{count:10d}")
    print(f"\n{'':32}{'idle':>10}{'besieged':>10}")
    for name in idle:
        print(f"{name:32}{idle[name]:10.1f}{besieged[name]:10.1f}")


def print_verdicts(verdicts: list[Verdict]) -> None:
    """Every figure that has a limit, beside it."""
    print(f"\n{'':32}{'figure':>10}{'limit':>10}")
    for verdict in verdicts:
        word = "ok" if verdict.is_kept else "broken"
        print(f"{verdict.name:32}{verdict.value:10.1f}{verdict.limit:10.1f}  {word}")


if __name__ == "__main__":
    run(main)
