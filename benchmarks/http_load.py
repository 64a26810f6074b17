"""A cheap load generator: raw HTTP/1.1 on persistent connections, one request at a time on each."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Self

TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server under load."""

    port: int
    key: str = "none"

    def create(self, number: int) -> bytes:
        """A create request."""
        body = json.dumps({"prompt": f"a red ball bounces {number} times", "seconds": "2"}).encode()
        return (
            f"POST /v1/videos HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def watch(self, video_id: str) -> bytes:
        """A request for the event stream of a video."""
        return (
            f"GET /v1/videos/{video_id}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {self.key}\r\n\r\n"
        ).encode()


class Connection:
    """One persistent connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Self:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, request: bytes) -> bytes:
        """The body of a 200 response. Raises RuntimeError for any other status."""
        self._writer.write(request)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await self._reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"unexpected response: {head[:60]!r} {body[:200]!r}")
        return body

    async def open_stream(self, request: bytes) -> None:
        """Request an event stream and wait for its first event."""
        self._writer.write(request)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._reader.readuntil(b"event: status")

    async def read_to_end(self) -> None:
        """Read and drop data until the server ends the stream."""
        while await self._reader.read(65536):
            pass

    def close(self) -> None:
        self._writer.close()


async def creates_per_second(target: Target, creates: int, connections: int) -> float:
    """The rate of accepted creates over this many connections."""
    opened = [await Connection.open(target.port) for _ in range(connections)]
    numbers = iter(range(creates))

    async def work(connection: Connection) -> None:
        for number in numbers:
            await connection.send(target.create(number))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in opened:
            group.create_task(work(connection))
    seconds = time.perf_counter() - started
    for connection in opened:
        connection.close()
    return creates / seconds
