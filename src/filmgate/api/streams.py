"""Responses that hold something until their last byte, such as a place among a tenant's streams."""

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class HeldStream(StreamingResponse):
    """A stream that closes `held` when it ends, also if the client left before its first byte."""

    def __init__(
        self,
        content: AsyncIterator[str | bytes],
        held: ExitStack,
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)
