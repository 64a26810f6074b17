"""Work that ends when its client leaves."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

R = TypeVar("R")


async def while_connected(request: Request, work: Coroutine[object, object, R]) -> R:
    """The result of the work. Cancels it and raises ClientDisconnect if the client leaves first.

    The body of the request must have been read, or not be needed.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
