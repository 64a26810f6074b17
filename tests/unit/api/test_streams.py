"""Chunks that a thread reads are closed exactly once, also if their reader leaves during a read."""

import threading

from filmgate.api.streams import BlockingChunks


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
    assert source.is_waiting.wait(10)
    chunks.close()
    assert source.closed == 0
    source.go.release()
    reader.join(10)
    assert source.closed == 1
