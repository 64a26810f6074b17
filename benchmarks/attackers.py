"""Attackers of every kind that a server must survive: `python -m benchmarks.attackers PORT KEY VIDEO_ID`.

Runs until stdin is closed and prints how many attacks of each kind were made. Every kind has its own
loopback address, as if it came from another machine. The process has a low priority, because other machines
would not use the server's cores. The key belongs to a hostile tenant; VIDEO_ID is a video of it. Prints
`ready` when all attackers have started.
"""

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache

from tests.raw_requests import damaged, valid_requests

_ANSWER_SECONDS = 5.0
_MEGABYTE = 1 << 20
# Attackers of one kind at a time.
_PARALLEL = 4
_PAUSE_SECONDS = 0.02


@dataclass
class Attack:
    """The target and the address that one kind of attack comes from."""

    port: int
    key: str
    video_id: str
    address: str
    chance: random.Random = field(default_factory=lambda: random.Random(15))

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0))
        try:
            yield reader, writer
        finally:
            # Not `close`, which waits until the server has read everything.
            writer.transport.abort()

    async def send(self, *parts: bytes) -> None:
        """Send the parts and wait for the beginning of the answer."""
        async with self.connection() as (reader, writer):
            for part in parts:
                writer.write(part)
                await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(4096), _ANSWER_SECONDS)

    def head(self, line: str, *headers: str, key: str | None = None) -> bytes:
        lines = (f"{line} HTTP/1.1", "Host: x", f"Authorization: Bearer {key or self.key}", *headers)
        return "\r\n".join((*lines, "", "")).encode()

    def post(self, kind: str, size: int) -> bytes:
        return self.head("POST /v1/videos", f"Content-Type: {kind}", f"Content-Length: {size}")


async def send_half_a_header(attack: Attack) -> None:
    async with attack.connection() as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        for _ in range(100):
            writer.write(b"y")
            with suppress(TimeoutError):
                if not await asyncio.wait_for(reader.read(4096), 0.5):
                    return


async def send_a_slow_body(attack: Attack) -> None:
    async with attack.connection() as (reader, writer):
        writer.write(attack.post("application/json", 1000))
        for _ in range(20):
            writer.write(b" ")
            with suppress(TimeoutError):
                if not await asyncio.wait_for(reader.read(4096), 0.5):
                    return


@cache
def _members(count: int) -> bytes:
    return b",".join(b'"k%d":1' % number for number in range(count))


async def send_large_json(attack: Attack) -> None:
    body = b"{" + _members(600_000) + b"}"
    await attack.send(attack.post("application/json", len(body)), body)


async def send_many_values(attack: Attack) -> None:
    body = b'{"prompt":"x","input_reference":{' + _members(12_000) + b"}}"
    await attack.send(attack.post("application/json", len(body)), body)


async def send_many_fields(attack: Attack) -> None:
    body = b"a=1&" * 30_000
    await attack.send(attack.post("application/x-www-form-urlencoded", len(body)), body)


async def send_an_undefined_charset(attack: Attack) -> None:
    body = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n--b--\r\n'
    await attack.send(attack.post("multipart/form-data; boundary=b; charset=undefined", len(body)), body)


async def leave_a_stream(attack: Attack) -> None:
    async with attack.connection() as (_, writer):
        writer.write(attack.head(f"GET /v1/videos/{attack.video_id}/stream"))
        await asyncio.sleep(0.05)


async def hold_event_streams(attack: Attack) -> None:
    async with attack.connection() as (reader, writer):
        writer.write(attack.head(f"GET /v1/videos/{attack.video_id}/events"))
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), 10)


async def upload_noise(attack: Attack) -> None:
    head = b'--b\r\nContent-Disposition: form-data; name="input_reference"; filename="a.png"\r\n\r\n'
    form = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx\r\n' + head + b"\x89PNG\r\n\x1a\n"
    size = len(form) + 15 * _MEGABYTE + len(b"\r\n--b--\r\n")
    noise = [os.urandom(_MEGABYTE)] * 15
    await attack.send(attack.post("multipart/form-data; boundary=b", size), form, *noise, b"\r\n--b--\r\n")


async def fetch_internal_urls(attack: Attack) -> None:
    url = attack.chance.choice(("http://127.0.0.1/", "http://169.254.169.254/", "http://[fec0::1]/"))
    body = json.dumps({"prompt": "x", "input_reference": {"image_url": url}}).encode()
    await attack.send(attack.post("application/json", len(body)), body)


async def invent_methods(attack: Attack) -> None:
    await attack.send(attack.head(f"M{attack.chance.randrange(10**9)} /v1/videos", key="none"))


async def guess_keys(attack: Attack) -> None:
    await attack.send(attack.head("GET /v1/videos", key=f"fg_{attack.chance.randrange(10**9)}_x"))


async def send_damaged_requests(attack: Attack) -> None:
    requests = valid_requests(attack.key, attack.video_id)
    await attack.send(damaged(attack.chance, attack.chance.choice(requests[6:])))


async def pipeline_requests(attack: Attack) -> None:
    await attack.send(attack.head("GET /v1/models") * 50)


async def smuggle_requests(attack: Attack) -> None:
    head = attack.head("POST /v1/videos", "Content-Length: 5", "Transfer-Encoding: chunked")
    await attack.send(head + b"0\r\n\r\n" + attack.head("GET /metrics"))


async def flood(attack: Attack) -> None:
    async with attack.connection() as (reader, writer):
        for _ in range(200):
            writer.write(attack.head("GET /v1/videos"))
            if not await asyncio.wait_for(reader.read(65536), _ANSWER_SECONDS):
                return


Kind = Callable[[Attack], Awaitable[None]]
KINDS: tuple[Kind, ...] = (
    send_half_a_header, send_a_slow_body, send_large_json, send_many_values, send_many_fields,
    send_an_undefined_charset, leave_a_stream, hold_event_streams, upload_noise, fetch_internal_urls,
    invent_methods, guess_keys, send_damaged_requests, pipeline_requests, smuggle_requests, flood,
)  # fmt: skip
# Many connections are the point of these.
_MORE: dict[Kind, int] = {
    send_half_a_header: 300,
    hold_event_streams: 100,
    leave_a_stream: 30,
    send_a_slow_body: 50,
}


async def repeat(kind: Kind, attack: Attack, counts: Counter[str]) -> None:
    """Attack until cancelled. A refused or closed connection is what the attacker expects."""
    while True:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            await kind(attack)
        counts[kind.__name__] += 1
        await asyncio.sleep(_PAUSE_SECONDS)


async def run(port: int, key: str, video_id: str) -> Counter[str]:
    """All attackers until stdin is closed: also when the parent process has ended."""
    counts: Counter[str] = Counter()
    tasks = []
    for number, kind in enumerate(KINDS):
        attack = Attack(port, key, video_id, f"127.0.1.{number + 1}")
        parallel = _MORE.get(kind, _PARALLEL)
        tasks += [asyncio.create_task(repeat(kind, attack, counts)) for _ in range(parallel)]
    # Every task runs before this one continues.
    await asyncio.sleep(_PAUSE_SECONDS)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts


if __name__ == "__main__":
    os.nice(5)
    print(json.dumps(asyncio.run(run(int(sys.argv[1]), sys.argv[2], sys.argv[3]))))
