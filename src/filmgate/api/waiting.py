"""`Prefer: wait=SECONDS` (RFC 7240): a response that is sent when the job ends, or after that time."""

import asyncio
import re
from contextlib import suppress

from fastapi import Request

from filmgate.api.disconnects import while_connected
from filmgate.api.edge import edge_of
from filmgate.api.watch import Watch
from filmgate.jobs import Job

MAX_WAIT_SECONDS = 30
_WAIT = re.compile(r"(?:^|,)\s*wait\s*=\s*\"?(\d+)\"?\s*(?:[,;]|$)", re.IGNORECASE)


def parse_wait(prefer: str | None) -> int:
    """The seconds that the client wants to wait for; 0 when it does not."""
    found = _WAIT.search(prefer or "")
    return min(int(found[1]), MAX_WAIT_SECONDS) if found else 0


async def wait_for_end(request: Request, job: Job, seconds: int) -> bool:
    """Wait until the job ends, or for `seconds`. False if the tenant may not watch one more job.

    Raises ClientDisconnect when the client leaves.
    """
    watchers = edge_of(request).watchers
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
