"""Responses that hold something until their last byte: a place among a tenant's streams, or a file."""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, aclosing
from threading import Lock

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class HeldStream(StreamingResponse):
    """A stream that closes its content and `held` at its end, even if the client disconnects."""

    def __init__(
        self,
        content: AsyncGenerator[str | bytes, None],
        held: ExitStack,
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        status_code: int = 200,
    ) -> None:
        super().__init__(content, status_code, headers, media_type)
        self._content = content
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            async with aclosing(self._content):
                await super().__call__(scope, receive, send)


class BlockingChunks:
    """Chunks that a thread reads while the event loop may close them.

    A client may disconnect during a read. A running generator cannot be closed: the read closes it then.
    """

    def __init__(self, chunks: Generator[bytes, None, None]) -> None:
        self._chunks = chunks
        self._lock = Lock()
        self._is_reading = False
        self._is_closed = False

    def read(self) -> bytes | None:
        """The next chunk; None at the end, or if the chunks are closed."""
        with self._lock:
            if self._is_closed:
                return None
            self._is_reading = True
        try:
            return next(self._chunks, None)
        finally:
            self._end_read()

    def _end_read(self) -> None:
        with self._lock:
            self._is_reading = False
            if self._is_closed:
                self._chunks.close()

    def close(self) -> None:
        """Release the file or the connection behind the chunks. Does not wait for a read."""
        with self._lock:
            self._is_closed = True
            if not self._is_reading:
                self._chunks.close()
