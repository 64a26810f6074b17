"""What the routes use: the other rooms, and the threads in which they may block."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from fastapi import Request

from filmgate.admission.accept import Admission
from filmgate.api.edge import SLOW_THREADS, Edge
from filmgate.api.enabled_tenants import EnabledTenants
from filmgate.api.stream_links import StreamLinks
from filmgate.api.streams import BlockingChunks
from filmgate.audit.log import AuditLog
from filmgate.jobs import TenantId
from filmgate.models.adapters import AdapterRegistry
from filmgate.models.cards import ModelRegistry
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.scheduling.forecast import LiveForecast
from filmgate.scheduling.history import History
from filmgate.scheduling.idempotency import BodyDigests
from filmgate.scheduling.workers import WorkerRegistry
from filmgate.settings import ApiSettings
from filmgate.slo.report import SloReport
from filmgate.store.base import ObjectStore
from filmgate.telemetry.tracing import Tracer
from filmgate.telemetry.untraced import NO_TRACER
from filmgate.tenants.registry import TenantRegistry
from filmgate.worker.offboarding import Offboarding

P = ParamSpec("P")
R = TypeVar("R")

# More than `Edge.writes` has slots.
THREADS = 16


def _pool(threads: int, name: str) -> Callable[[], ThreadPoolExecutor]:
    return partial(ThreadPoolExecutor, threads, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a request may use. The other rooms block: `call` runs them on a thread."""

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
    pool: ThreadPoolExecutor = field(default_factory=_pool(THREADS, "api"))
    slow_pool: ThreadPoolExecutor = field(default_factory=_pool(SLOW_THREADS, "api-slow"))

    async def call(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await _run(self.pool, partial(work, *args, **kwargs))

    async def call_slowly(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """For work that waits for other servers or child processes. Hold one of `Edge.slow` meanwhile."""
        return await _run(self.slow_pool, partial(work, *args, **kwargs))

    async def call_writing(
        self, tenant_id: TenantId, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Call what writes to the database, when it is the tenant's turn.

        Writes wait for each other and for the disk. Reads, such as the lookup of every key, must not wait for
        a thread behind the writes of one tenant.
        """
        async with self.edge.writes.hold(tenant_id):
            return await self.call(work, *args, **kwargs)

    def close(self) -> None:
        """Start no more work; running work is not waited for."""
        for pool in (self.pool, self.slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def pull(self, chunks: BlockingChunks) -> AsyncIterator[bytes]:
        while (chunk := await self.call(chunks.read)) is not None:
            yield chunk


def services_of(request: Request) -> Services:
    """The services of the app that handles this request."""
    services: Services = request.app.state.services
    return services


async def _run(pool: ThreadPoolExecutor, work: Callable[[], R]) -> R:
    """Run with the context of the request, so that log lines and spans name its trace."""
    return await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, work)
