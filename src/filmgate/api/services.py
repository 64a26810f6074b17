"""What the routes use: the other packages, and the threads in which they may block, shared among tenants."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from fastapi import Request

from filmgate.admission.accept import Admission
from filmgate.api.edge import Edge
from filmgate.api.stream_links import StreamLinks
from filmgate.api.streams import BlockingChunks
from filmgate.audit.log import AuditLog
from filmgate.errors import InvalidKey, TenantNotFound
from filmgate.jobs import TenantId
from filmgate.maintenance.offboarding import Offboarding
from filmgate.models.adapters import AdapterRegistry
from filmgate.models.cards import ModelRegistry
from filmgate.scheduling.acceptance import BodyDigests
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.scheduling.forecast import LiveForecast
from filmgate.scheduling.history import History
from filmgate.scheduling.ttl_cache import TtlCache
from filmgate.scheduling.workers import WorkerRegistry
from filmgate.settings import ApiSettings
from filmgate.slo.report import SloReport
from filmgate.store.base import ObjectStore
from filmgate.telemetry.tracing import Tracer
from filmgate.telemetry.untraced import NO_TRACER
from filmgate.tenants.registry import TenantRegistry

P = ParamSpec("P")
R = TypeVar("R")

# Writes to the database, and calls of the store: a third of the threads each, and half of those for one
# tenant. The last third is for short reads, such as the lookup of every key.
THREADS = 24
_WRITES = _STORE_CALLS = 8
_PER_TENANT = 4
# Fetching a URL and decoding an image take seconds: they have their own threads.
SLOW_THREADS = 8
_SLOW_PER_TENANT = 2
# How long it takes at most until the streams of a disabled tenant end.
_ENABLED_SECONDS = 1.0


class FairSlots:
    """Slots for slow work. A tenant holds at most `per_tenant`; the tenant with the fewest gets the next one.

    Used on one event loop.
    """

    def __init__(self, slots: int, per_tenant: int) -> None:
        self._free = slots
        self._per_tenant = per_tenant
        self._held: Counter[TenantId] = Counter()
        self._waiting: dict[TenantId, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, tenant_id: TenantId) -> AsyncIterator[None]:
        await self._acquire(tenant_id)
        try:
            yield
        finally:
            self._release(tenant_id)

    async def _acquire(self, tenant_id: TenantId) -> None:
        if self._free and self._held[tenant_id] < self._per_tenant:
            self._take(tenant_id)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant_id, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(tenant_id)
            else:
                self._forget(tenant_id, turn)
            raise

    def _take(self, tenant_id: TenantId) -> None:
        self._free -= 1
        self._held[tenant_id] += 1

    def _release(self, tenant_id: TenantId) -> None:
        self._free += 1
        self._held[tenant_id] -= 1
        if not self._held[tenant_id]:
            del self._held[tenant_id]
        self._grant()

    def _grant(self) -> None:
        while self._free:
            able = [name for name in self._waiting if self._held[name] < self._per_tenant]
            if not able:
                return
            # The first of the tenants with the fewest slots; it then waits behind the other tenants.
            name = min(able, key=lambda each: self._held[each])
            turns = self._waiting.pop(name)
            turn = turns.popleft()
            if turns:
                self._waiting[name] = turns
            # The turn of a client that has disconnected is cancelled, but its task may not have run since.
            if not turn.done():
                self._take(name)
                turn.set_result(None)

    def _forget(self, tenant_id: TenantId, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(tenant_id, deque())
        if turn in turns:
            turns.remove(turn)
        if not turns:
            self._waiting.pop(tenant_id, None)


class EnabledTenants:
    """Which tenants are enabled, for streams that outlive the check of their key, and for links.

    `has` and `require` read once per second, however many streams are open.
    """

    def __init__(self, registry: TenantRegistry) -> None:
        self._registry = registry
        self._enabled = TtlCache(self._read, _ENABLED_SECONDS)

    def has(self, tenant_id: TenantId) -> bool:
        """Whether the tenant was enabled at most a second ago. A tenant created since then is found too."""
        return tenant_id in self._enabled.get() or self.is_enabled(tenant_id)

    def require(self, tenant_id: TenantId) -> None:
        """Raises InvalidKey for a tenant that was disabled or deleted."""
        if not self.has(tenant_id):
            raise InvalidKey("this tenant is disabled")

    def is_enabled(self, tenant_id: TenantId) -> bool:
        """Whether the tenant exists and is enabled now: the links of a disabled tenant stop immediately."""
        try:
            return self._registry.find(tenant_id).is_enabled
        except TenantNotFound:
            return False

    def _read(self) -> frozenset[TenantId]:
        return frozenset(tenant.id for tenant in self._registry.tenants() if tenant.is_enabled)


def _pool(threads: int, name: str) -> Callable[[], ThreadPoolExecutor]:
    return partial(ThreadPoolExecutor, threads, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a request may use. The other packages block: `call` runs them on a thread."""

    admission: Admission
    queue: JobQueue
    reader: JobReader
    store: ObjectStore
    tenants: TenantRegistry
    forecast: LiveForecast
    models: ModelRegistry
    settings: ApiSettings
    link_seconds: float
    stream_links: StreamLinks
    enabled: EnabledTenants
    offboarding: Offboarding
    audit: AuditLog
    workers: WorkerRegistry
    slo: SloReport
    history: History
    digests: BodyDigests
    adapters: AdapterRegistry
    edge: Edge
    spool_folder: Path | None = None
    tracer: Tracer = NO_TRACER
    writes: FairSlots = field(default_factory=partial(FairSlots, _WRITES, _PER_TENANT))
    store_calls: FairSlots = field(default_factory=partial(FairSlots, _STORE_CALLS, _PER_TENANT))
    slow: FairSlots = field(default_factory=partial(FairSlots, SLOW_THREADS, _SLOW_PER_TENANT))
    pool: ThreadPoolExecutor = field(default_factory=_pool(THREADS, "api"))
    slow_pool: ThreadPoolExecutor = field(default_factory=_pool(SLOW_THREADS, "api-slow"))

    async def call(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await _run(self.pool, partial(work, *args, **kwargs))

    async def run_slow(self, work: Callable[[], R]) -> R:
        """Run work on the threads for slow work. `waiting.call_slow_work` shares them among tenants."""
        return await _run(self.slow_pool, work)

    async def call_for_write(
        self, tenant_id: TenantId, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call what writes to the database, when it is the tenant's turn.

        Writes wait for each other and for the disk. Reads, such as the lookup of every key, must not wait for
        a thread behind the writes of one tenant.
        """
        async with self.writes.hold(tenant_id):
            return await self.call(work, *args, **kwargs)

    async def call_store(
        self, tenant_id: TenantId, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call what uses the store, which may be slow, when it is the tenant's turn.

        If the client disconnects, the call goes on, and the tenant holds its slot until it ends.
        """

        async def call() -> R:
            async with self.store_calls.hold(tenant_id):
                return await self.call(work, *args, **kwargs)

        return await asyncio.shield(call())

    def close(self) -> None:
        """Start no more work; running work is not waited for."""
        for pool in (self.pool, self.slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def pull(self, tenant_id: TenantId, chunks: BlockingChunks) -> AsyncGenerator[bytes, None]:
        """The chunks, until the tenant is disabled. Then raises InvalidKey, which closes the connection."""

        def read() -> bytes | None:
            self.enabled.require(tenant_id)
            return chunks.read()

        while (chunk := await self.call_store(tenant_id, read)) is not None:
            yield chunk


def services_of(request: Request) -> Services:
    """The services of the app that handles this request."""
    services: Services = request.app.state.services
    return services


async def _run(pool: ThreadPoolExecutor, work: Callable[[], R]) -> R:
    """Run with the context of the request, so that log lines and spans name its trace."""
    return await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, work)
