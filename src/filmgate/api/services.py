"""What the HTTP edge stands on: the other stations, and the threads in which they may block."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

from fastapi import Request

from filmgate.admission.accept import Gate
from filmgate.api.stream_links import PassOffice
from filmgate.scheduling.base import JobBook, JobQueue
from filmgate.settings import ApiSettings
from filmgate.store.base import ObjectStore
from filmgate.tenants.base import TenantRegistry

P = ParamSpec("P")
R = TypeVar("R")

THREADS = 16
# Fetching a URL and decoding an image take up to seconds each; they may not keep everyone else waiting.
SLOW_THREADS = 4


def _pool(threads: int, name: str) -> Callable[[], ThreadPoolExecutor]:
    return partial(ThreadPoolExecutor, threads, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Stations:
    """Every part a request may touch. All ports block: `call` runs them in a named thread."""

    gate: Gate
    queue: JobQueue
    book: JobBook
    store: ObjectStore
    tenants: TenantRegistry
    settings: ApiSettings
    link_seconds: float
    passes: PassOffice
    pool: ThreadPoolExecutor = field(default_factory=_pool(THREADS, "station"))
    slow_pool: ThreadPoolExecutor = field(default_factory=_pool(SLOW_THREADS, "slow-station"))

    async def call(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, lambda: work(*args, **kwargs))

    async def call_slowly(self, work: Callable[[], R]) -> R:
        """For work that waits for others: strangers' servers, child processes."""
        return await asyncio.get_running_loop().run_in_executor(self.slow_pool, work)

    def close(self) -> None:
        """Start nothing more; what runs is let go."""
        for pool in (self.pool, self.slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def pull(self, chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks of a blocking stream."""
        while (chunk := await self.call(next, chunks, None)) is not None:
            yield chunk


def stations_of(request: Request) -> Stations:
    """The stations of the app that serves this request."""
    stations: Stations = request.app.state.stations
    return stations
