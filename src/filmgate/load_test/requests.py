"""Sends the requests of a load test and measures each one, until the client can ask for the link."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx

from filmgate.client import AsyncFilmgate
from filmgate.errors import FilmgateError
from filmgate.load_test.mix import ClipKind, Plan
from filmgate.load_test.server import START_SECONDS, Server

_PROMPT = "a red ball rolls over the grass, take {number}"
_WARM_UP_NUMBER = 1_000_000  # other prompts and seeds than those of the test


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of the test. Times are Unix seconds as the client saw them."""

    kind: ClipKind
    video_id: str | None
    sent_at: float
    linked_at: float | None = None
    error: str | None = None
    tenant: int = 0

    @property
    def seconds(self) -> float | None:
        """From the request to the link."""
        return None if self.linked_at is None else self.linked_at - self.sent_at


def warm_up(server: Server, kinds: Sequence[ClipKind]) -> list[Sent]:
    """Render one clip of each kind first: it loads models, compiles blocks and fills caches."""
    plan = Plan(tuple(kinds), (0.0,) * len(kinds), None)
    ends = time.monotonic() + START_SECONDS
    while True:
        sent = asyncio.run(_send_all(server, plan, first_number=_WARM_UP_NUMBER))
        is_accepted = all(each.video_id is not None for each in sent)
        may_be_loading = server.data is not None  # a server that this command started
        if is_accepted or not may_be_loading or time.monotonic() > ends:
            return sent
        time.sleep(1.0)  # the worker still loads a model


def send_requests(server: Server, plan: Plan) -> list[Sent]:
    """Send every request at its time and wait for all links."""
    return asyncio.run(_send_all(server, plan))


async def _send_all(server: Server, plan: Plan, first_number: int = 0) -> list[Sent]:
    """The tenants send in turn."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with AsyncExitStack() as opened:
        clients = [
            await opened.enter_async_context(
                AsyncFilmgate(server.url, key, timeout_seconds=600, limits=limits)
            )
            for key in server.keys
        ]
        started = time.monotonic()

        async def send(number: int) -> Sent:
            await asyncio.sleep(max(plan.times[number] - (time.monotonic() - started), 0.0))
            tenant = number % len(clients)
            sent = await _send(clients[tenant], plan.kinds[number], first_number + number)
            return replace(sent, tenant=tenant)

        return await asyncio.gather(*(send(number) for number in range(len(plan.times))))


async def _send(client: AsyncFilmgate, kind: ClipKind, number: int) -> Sent:
    sent_at, video_id = time.time(), None
    try:
        options: dict[str, Any] = {"seed": number, **kind.options}
        video = await client.create(_PROMPT.format(number=number), **options)
        video_id = video.id
        async for _ in client.events(video):
            pass  # the last event is the end of the job
        video = await client.get(video)
        if video.status != "completed":
            return Sent(kind, video_id, sent_at, error=video.failure or video.status)
    except FilmgateError as exc:
        return Sent(kind, video_id, sent_at, error=str(exc))
    return Sent(kind, video_id, sent_at, linked_at=time.time())
