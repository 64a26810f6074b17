"""Streams end with their client, and chunks that a thread reads are closed exactly once."""

import asyncio
import threading
from contextlib import ExitStack, suppress
from types import SimpleNamespace

from filmgate.api.live import _fragments
from filmgate.api.streams import BlockingChunks, HeldStream
from tests.tickets import make_ticket, queued_job


class Source:
    """Chunks that wait for `go` before each one, and count how often they are closed."""

    def __init__(self):
        self.go = threading.Semaphore(0)
        self.is_waiting = threading.Event()
        self.closed = 0

    def chunks(self):
        try:
            for number in range(2):
                self.is_waiting.set()
                self.go.acquire()
                yield bytes([number])
        finally:
            self.closed += 1


def test_chunks_end_with_none():
    source = Source()
    chunks = BlockingChunks(source.chunks())
    source.go.release(2)
    assert [chunks.read(), chunks.read(), chunks.read(), chunks.read()] == [b"\0", b"\1", None, None]
    chunks.close()
    assert source.closed == 1


def test_closed_chunks_release_their_source_and_are_not_read_again():
    source = Source()
    chunks = BlockingChunks(source.chunks())
    source.go.release(2)
    chunks.read()
    chunks.close()
    assert source.closed == 1
    assert chunks.read() is None


def test_chunks_that_are_closed_during_a_read_are_released_when_it_ends():
    source = Source()
    chunks = BlockingChunks(source.chunks())
    reader = threading.Thread(target=chunks.read)
    reader.start()
    assert source.is_waiting.wait(60)
    chunks.close()
    assert source.closed == 0
    source.go.release()
    reader.join(60)
    assert source.closed == 1


def test_a_stream_closes_its_content_when_the_client_leaves():
    closed = []

    async def read():
        try:
            yield b"first"
        finally:
            closed.append("content")

    async def leave():
        content, held, is_sent = read(), ExitStack(), asyncio.Event()
        held.callback(closed.append, "held")

        async def send(message):
            if message["type"] == "http.response.body":
                is_sent.set()
                await asyncio.Event().wait()  # the client does not read

        async def receive():
            await is_sent.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        with suppress(ExceptionGroup):
            await HeldStream(content, held, media_type="video/mp4")(scope, receive, send)
        return content

    asyncio.run(leave())
    assert closed == ["content", "held"]


def test_a_live_stream_that_is_closed_stops_reading_ahead():
    async def view():
        fragments = _fragments(
            SimpleNamespace(call_store=read_forever), queued_job(make_ticket(), now=1.0), b"first"
        )
        assert [await anext(fragments), await anext(fragments)] == [b"first", b"next"]
        # Another task than the one that read, as after a viewer has left.
        await asyncio.create_task(fragments.aclose())
        return asyncio.all_tasks() - {asyncio.current_task()}

    async def read_forever(*_work):
        await asyncio.sleep(0)
        return b"next"

    assert asyncio.run(view()) == set()
