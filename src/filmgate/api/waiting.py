"""Responses that wait: `Prefer: wait=SECONDS` (RFC 7240), and work that ends when its client disconnects."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

from filmgate.api.services import services_of
from filmgate.api.watch import Watch
from filmgate.jobs import Job, TenantId

R = TypeVar("R")

MAX_WAIT_SECONDS = 30
_WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?(\d+)\"?\s*(?:[,;]|$)", re.IGNORECASE)


def parse_wait(prefer: str | None) -> int:
    """The seconds that the client wants to wait for; 0 when it does not."""
    found = _WAIT.search(prefer or "")
    return min(int(found[1]), MAX_WAIT_SECONDS) if found else 0


async def wait_for_end(request: Request, job: Job, seconds: int) -> bool:
    """Wait until the job ends, or for `seconds`. False if the tenant may not watch one more job.

    Raises ClientDisconnect when the client disconnects.
    """
    watchers = services_of(request).edge.watchers
    if job.state.is_final or not seconds or not watchers.has_room(job.tenant_id):
        return False
    with watchers.holding(job.tenant_id):
        await while_connected(request, _follow(request.app.state.watch, job, seconds))
    return True


async def _follow(watch: Watch, job: Job, seconds: int) -> None:
    async with watch.watching(job) as events:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (await events.get()).is_last:
                    pass


async def call_slow_work(request: Request, tenant_id: TenantId, work: Callable[[], R]) -> R:
    """Call work that waits for other servers or child processes, when it is the tenant's turn.

    Raises ClientDisconnect if the client disconnects before. The body of the request must have been read.
    """
    services = services_of(request)
    async with AsyncExitStack() as held:
        await while_connected(request, held.enter_async_context(services.slow.hold(tenant_id)))
        return await services.run_slow(work)


async def while_connected(request: Request, work: Coroutine[object, object, R]) -> R:
    """The result of the work. Cancels it and raises ClientDisconnect if the client disconnects first.

    The body of the request must have been read, or not be needed.
    """
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
