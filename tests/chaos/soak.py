"""A site under random kills: server, GPU workers, managed worker and database are killed while clients create
jobs. Afterwards every accepted job must have ended once, with its clip, and the books must be exact.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import httpx
import psycopg
import pytest

from filmgate.errors import QueueUnavailable
from filmgate.jobs import Idempotency, JobId, JobState, ManagedPolicy, Route, TenantId
from filmgate.maintenance.retention import ORPHAN_SECONDS, Retention
from filmgate.providers import open_provider
from filmgate.providers.invocations import SqlInvocations
from filmgate.providers.managed.orphans import OrphanSweep
from filmgate.store.base import ObjectName
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.chaos.conftest import Site
from tests.pattern_runner import MODEL, pattern_clip
from tests.second_filmgate import CARDS_ENVIRON
from tests.server_process import free_port
from tests.tickets import make_ticket
from tests.waiting import wait_until

TENANTS = [TenantId(f"tenant-{number}") for number in range(3)]
GPU_WORKERS = ("worker-0", "worker-1")
PROCESSES = {
    "server": ("filmgate", "serve", "--no-worker"),
    "worker": ("tests.chaos.pattern_worker", "--pace=0.01"),
    "managed": ("filmgate", "worker", "--managed"),
}
# Open jobs: enough that every worker has one while others wait for the lease of a killed worker to end.
MAX_OPEN = 12
CLIENTS = 2
# Kills ahead of ended jobs. More would be a machine too slow for the jobs to end between two kills.
MAX_AHEAD = 10
SEED = int(os.environ.get("FILMGATE_TEST_SOAK_SEED", "15"))
STALL_SECONDS = float(os.environ.get("FILMGATE_TEST_SOAK_STALL_SECONDS", "600"))
ENVIRON = CARDS_ENVIRON | {
    "FILMGATE_QUEUE__LEASE_SECONDS": "1",
    "FILMGATE_QUEUE__BACKOFF_SECONDS": "0.05",
    "FILMGATE_QUEUE__POLL_SECONDS": "0.05",
    "FILMGATE_QUEUE__MAX_ATTEMPTS": "20",
    "FILMGATE_WORKER__HEARTBEAT_SECONDS": "0.3",
    "FILMGATE_WORKER__PROGRESS_SECONDS": "0.05",
    "FILMGATE_PROVIDER__KIND": "http",
    "FILMGATE_PROVIDER__POLL_SECONDS": "0.05",
    "FILMGATE_STORE__MIN_FREE_BYTES": "0",
    "FILMGATE_ADMISSION__SCALE_FROM_ZERO": "*",
    "FILMGATE_ADMISSION__PROMISE_SECONDS": "1000000",
    "FILMGATE_LIMITS__TENANT_REQUESTS_PER_SECOND": "0",
    "FILMGATE_LIMITS__ADDRESS_REQUESTS_PER_SECOND": "0",
    "FILMGATE_MANAGEMENT__ENABLED": "false",
}


@dataclass
class Soak:
    """Kills `kills` processes at random while as many jobs are created and rendered."""

    site: Site
    provider: object  # the second Filmgate, which renders the jobs of the managed route
    kills: int
    server: object = None  # a PostgresServer, None with SQLite
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    killed: Counter = field(default_factory=Counter)
    restarts: int = 0  # of processes that ended on their own
    accepted: dict[str, tuple[TenantId, JobId]] = field(default_factory=dict)

    def __post_init__(self):
        policy = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
        registry = TenantRegistry(self.site.database)
        self.keys = {name: registry.add(Tenant(name, managed=policy)).secret for name in TENANTS}
        self.url = f"http://127.0.0.1:{self.site.environ['FILMGATE_API__PORT']}"
        self.is_over = threading.Event()
        self.running = {}
        self.day = _find_day()

    def run(self):
        """Returns the report after `check`."""
        started = time.monotonic()
        for name in ("server", *GPU_WORKERS, "managed"):
            self._start(name)
        with ThreadPoolExecutor(CLIENTS) as pool:
            self.clients = [pool.submit(self._create_jobs, number) for number in range(CLIENTS)]
            try:
                self._kill_at_random()
                self._supervise_until(lambda: len(self.accepted) == self.kills and self._count_open() == 0)
            finally:
                self.is_over.set()
        return self.check() | {"seconds": round(time.monotonic() - started, 1)}

    def _start(self, name):
        if name == "database":
            self.server.start()
        else:
            self.running[name] = self.site.start(*PROCESSES[name.partition("-")[0]])

    def _kill_at_random(self):
        victims = ["server", *GPU_WORKERS, "managed"] + ["database"] * (self.server is not None)
        for number in range(self.kills):
            self._supervise_until(lambda number=number: self._count_ended() + MAX_AHEAD >= number)
            time.sleep(self.chance.uniform(0.0, 0.2))
            victim = self.chance.choice(victims)
            self.server.crash() if victim == "database" else self.site.kill(self.running[victim])
            self.killed[victim.partition("-")[0]] += 1
            self._start(victim)

    def _supervise_until(self, predicate):
        """Wait. A process that ends on its own, such as one that found no database, is started again."""

        def supervise():
            for name in [name for name, process in self.running.items() if process.poll() is not None]:
                self.restarts += 1
                assert self.restarts <= 20 + 5 * self.kills, self.site.log.read_text()[-3000:]
                self._start(name)
            for client in self.clients:
                if client.done():
                    client.result()
            return predicate()

        wait_until(supervise, STALL_SECONDS, describe=self._describe_stall)

    def _describe_stall(self):
        """What the database, the open jobs and the threads of every process wait for."""
        size = self.site.log.stat().st_size
        for process in self.running.values():
            process.send_signal(signal.SIGUSR1)
        with suppress(AssertionError):
            wait_until(
                lambda: self.site.log.read_text()[size:].count("Current thread") >= len(self.running), 5
            )
        jobs = [self.site.reader.find(*ids) for ids in self.accepted.values()] if self._count_open() else []
        waiting = [
            (job.id, job.state, job.route, job.attempt, job.progress)
            for job in jobs
            if not job.state.is_final
        ]
        return f"{self._read_activity()}\n{waiting}\n{self.site.log.read_text()[size - 3000 :]}"

    def _read_activity(self):
        if self.server is None:
            return "SQLite"
        columns = "pid, state, wait_event_type, wait_event, pg_blocking_pids(pid), now() - xact_start, query"
        with psycopg.connect(self.server.url) as connection:
            rows = connection.execute(f"SELECT {columns} FROM pg_stat_activity WHERE datname IS NOT NULL")
            return "\n".join(str(row) for row in rows)

    def _count_open(self):
        """Open jobs, None while the database is down."""
        with suppress(QueueUnavailable):
            return sum(count.jobs for count in self.site.reader.backlog().counts)
        return None

    def _count_ended(self):
        count = self._count_open()
        return -1 if count is None else len(self.accepted) - count

    def _create_jobs(self, first):
        """One client: creates its share of the jobs, each until it is accepted."""
        for number in range(first, self.kills, CLIENTS):
            while not self.is_over.is_set() and (self._count_open() or 0) >= MAX_OPEN:
                time.sleep(0.02)
            tenant_id, key = TENANTS[number % len(TENANTS)], f"soak-{number}"
            create = self._create_managed if number % 4 == 3 else self._create_over_http
            while not self.is_over.is_set():
                if (job_id := create(tenant_id, key, number)) is not None:
                    self.accepted[key] = (tenant_id, job_id)
                    break
                time.sleep(0.02)

    def _create_over_http(self, tenant_id, key, number):
        body = {"prompt": f"ball {number}", "seconds": "1", "size": "64x64", "seed": number}
        headers = {"Authorization": f"Bearer {self.keys[tenant_id]}", "Idempotency-Key": key}
        try:
            response = httpx.post(f"{self.url}/v1/videos", json=body, headers=headers, timeout=30)
        except httpx.TransportError:
            return None
        assert response.status_code == 200 or response.status_code >= 500, response.text
        return response.json()["id"] if response.status_code == 200 else None

    def _create_managed(self, tenant_id, key, number):
        spec = {"model": MODEL, "prompt": f"ball {number}", "seconds": 1.0, "seed": number}
        ticket = make_ticket(tenant_id, idempotency=Idempotency(body_digest=key, key=key), **spec)
        with suppress(QueueUnavailable):
            return self.site.queue.enqueue(replace(ticket, route=Route.MANAGED)).id
        return None

    def check(self):
        """Every accepted job ended once, with its clip; nothing is left over; the books are exact."""
        done = {key: self.site.reader.find(*ids) for key, ids in self.accepted.items()}
        self._sweep()
        return {
            "kills": dict(self.killed),
            "jobs": len(done),
            "attempts": sum(job.attempt for job in done.values()),
            "lost": sum(not self._is_whole(job) for job in done.values()),
            "doubled": self._count_doubled(done.values()),
            "orphans": self._count_orphans(done.values()),
            "wrong_books": self._find_wrong_books(done.values()),
        }

    def _is_whole(self, job):
        if job.state is not JobState.COMPLETED:
            return False
        clip = b"".join(self.site.store.read(ObjectName(job.tenant_id, job.id, job.clip.part)))
        return clip == pattern_clip(job.spec)

    def _count_doubled(self, done):
        """Jobs beside those accepted, jobs that ended twice, and jobs that the provider rendered twice."""
        rows = sum(each.jobs for each in self.site.reader.statistics().ended)
        ends = [self.site.reader.events(job.tenant_id, job.id) for job in done]
        twice = sum(sum(event.state.is_final for event in events) != 1 for events in ends)
        rendered = sum(each.jobs for each in self.provider.services.reader.statistics().ended)
        managed = sum(job.route is Route.MANAGED for job in done)
        return rows - len(self.accepted) + twice + rendered - managed

    def _sweep(self):
        """What runs every minute and every hour, at once."""
        site, tenants = self.site, TenantRegistry(self.site.database)
        later = time.time() + 2 * ORPHAN_SECONDS
        Retention(site.queue, site.reader, site.store, tenants, clock=lambda: later).delete_orphans()
        site.store.sweep(0)
        records = SqlInvocations(site.database)
        provider = open_provider(site.settings.provider)
        site.wait_until(lambda: OrphanSweep(provider, records, idle_seconds=0.0).run() == 0)

    def _count_orphans(self, done):
        """Objects that no job refers to, here and at the provider, and unpublished drafts."""
        kept = {(j.id, p) for j in done for p in (j.clip.part, j.clip.thumbnail, j.clip.spritesheet) if p}
        found = [
            (job_id, stored.name.part)
            for tenant_id in TENANTS
            for job_id, parts in self.site.store.jobs(tenant_id)
            for stored in parts
        ]
        copies = self.provider.services.reader.page(TenantId("local"), limit=100).jobs
        return len([name for name in found if name not in kept]) + len(copies) + self.site.store.sweep(0)

    def _find_wrong_books(self, done):
        """Tenants whose use or whose counters differ from what was rendered for them."""
        ended = self.site.reader.statistics().ended
        wrong, is_new_day = ["open jobs"] * bool(self._count_open()), _find_day() != self.day
        for tenant_id in TENANTS:
            own = [job for job in done if job.tenant_id == tenant_id]
            rendered = sum(job.measured.gpu_seconds for job in own)
            counted = sum(each.gpu_seconds for each in ended if each.tenant_id == tenant_id)
            used = self.site.reader.gpu_seconds_today(tenant_id)
            jobs = sum(each.jobs for each in ended if each.tenant_id == tenant_id)
            is_right = counted == pytest.approx(rendered) and (used == pytest.approx(rendered) or is_new_day)
            wrong += [tenant_id] * (not is_right or jobs != len(own))
        return wrong


def _find_day():
    """The day of the quotas, in UTC: at midnight, the use of every tenant starts at zero again."""
    return time.time() // 86400


@contextmanager
def opened_soak(make_site, provider, kills, server=None):
    """A soak on SQLite, or on this PostgreSQL server."""
    endpoint = {
        "FILMGATE_API__PORT": str(free_port()),
        "FILMGATE_PROVIDER__URL": f"{provider.url}/v1",
        "FILMGATE_PROVIDER__API_KEY": provider.key,
    }
    database = {"FILMGATE_QUEUE__URL": server.start().url} if server else {}
    site = make_site(**ENVIRON, **endpoint, **database)
    try:
        yield Soak(site, provider, kills, server)
    finally:
        site.close()
        if server is not None:
            server.remove()
