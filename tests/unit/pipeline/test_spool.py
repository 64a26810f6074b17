"""A clip that is read while it is written, in bounded memory and without plain bytes on disk."""

import hashlib
import os
import tempfile
import threading
import tracemalloc

import pytest

from filmgate.errors import EncodeError, WriteError
from filmgate.pipeline.encode.clip_file import MEMORY_BYTES, PIECE_BYTES, ClipSpool
from tests.waiting import wait_until


@pytest.fixture
def spool():
    spool = ClipSpool(head_bytes=10)
    yield spool
    spool.close()


def noise(size):
    return hashlib.shake_128(b"clip").digest(size)


def fill(spool, body, piece_bytes=300_001):
    """Write a body and then its head, as a muxer does."""
    spool.seek(spool.head_bytes)
    for at in range(0, len(body), piece_bytes):
        spool.write(body[at : at + piece_bytes])
    spool.seek(0)
    spool.write(b"0123456789"[: spool.head_bytes])
    spool.publish()


def test_a_muxer_can_seek_in_it(spool):
    assert spool.write(b"type") == 4
    assert spool.seek(10) == 10
    spool.write(b"packets")
    assert spool.seek(4) == spool.tell() == 4
    spool.write(b"index!")
    assert spool.seek(0, 2) == 17
    assert spool.seek(-7, 1) == 10
    spool.publish()
    assert (b"".join(spool.chunks()), spool.seekable()) == (b"typeindex!packets", True)


def test_a_write_across_the_end_of_the_head_is_split(spool):
    spool.write(b"index for 7 packets")
    spool.publish()
    assert (spool.head(), b"".join(spool.follow())) == (b"index for ", b"7 packets")


def test_the_body_cannot_be_rewritten(spool):
    fill(spool, b"packets")
    spool.seek(12)
    with pytest.raises(EncodeError, match="may already be uploaded"):
        spool.write(b"other")
    assert b"".join(spool.follow()) == b"packets"


def test_a_clip_shorter_than_its_head_has_an_empty_body(spool):
    spool.write(b"tiny")
    spool.publish()
    assert (spool.head(), list(spool.follow()), spool.size_bytes) == (b"tiny", [], 4)


@pytest.mark.parametrize("size", [0, 1, MEMORY_BYTES, MEMORY_BYTES + 1, 3 * MEMORY_BYTES + 12_345])
def test_a_body_of_any_size_can_be_read_again_and_again(spool, size):
    body = noise(size)
    fill(spool, body)
    assert spool.size_bytes == 10 + size
    for _ in range(2):
        assert b"".join(spool.chunks()) == b"0123456789" + body


def test_a_reader_gets_what_is_there_and_waits_for_the_rest(spool):
    received = []
    reader = threading.Thread(target=lambda: received.extend(spool.follow()), daemon=True)
    spool.write(b"index.....one")
    reader.start()
    wait_until(lambda: received == [b"one"], interval=0.001)
    spool.write(b"two")
    spool.publish()
    reader.join(60)
    assert b"".join(received) == b"onetwo"


def test_a_reader_that_falls_behind_continues_from_the_file(spool):
    body = noise(4 * MEMORY_BYTES)
    spool.seek(10)
    spool.write(body[:100])
    reading = spool.follow()
    received = next(reading)
    spool.write(body[100:])
    spool.publish()
    assert received + b"".join(reading) == body


def test_pieces_are_bounded(spool):
    fill(spool, bytes(2 * PIECE_BYTES + 1))
    assert [len(piece) for piece in spool.follow()] == [PIECE_BYTES, PIECE_BYTES, 1]


def test_memory_does_not_grow_with_the_body(spool):
    spool.seek(10)
    tracemalloc.start()
    try:
        for _ in range(40):
            spool.write(bytes(PIECE_BYTES))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MEMORY_BYTES


def test_the_temporary_file_is_encrypted_and_has_no_name(spool, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    secret = b"plain text of a clip "
    fill(spool, secret * (2 * MEMORY_BYTES // len(secret)))
    on_disk = os.pread(spool._body._file.fileno(), 2 * MEMORY_BYTES, 0)
    assert len(on_disk) > MEMORY_BYTES
    assert secret not in on_disk
    assert list(tmp_path.iterdir()) == []


def test_a_short_clip_needs_no_temporary_file(spool, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/does/not/exist")
    fill(spool, bytes(MEMORY_BYTES))
    assert spool.size_bytes == 10 + MEMORY_BYTES


def test_a_missing_temporary_folder_is_a_write_error_that_names_it(spool, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/does/not/exist")
    with pytest.raises(WriteError, match=r"/does/not/exist.*No such file or directory; .*set TMPDIR"):
        fill(spool, bytes(2 * MEMORY_BYTES))


def test_a_full_temporary_folder_is_a_write_error_that_names_it(spool, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(WriteError, match=rf"{tempfile.gettempdir()}.*No space left on device; free space"):
        fill(spool, bytes(2 * MEMORY_BYTES))


@pytest.mark.parametrize("size", [4, 2 * MEMORY_BYTES])
def test_a_reader_of_a_closed_clip_raises(spool, size):
    spool.seek(10)
    spool.write(bytes(size))
    reading = spool.follow()
    assert next(reading)
    spool.close()
    with pytest.raises(WriteError, match="closed while it was being read"):
        next(reading)


def test_closing_frees_the_file_once(spool):
    fill(spool, bytes(2 * MEMORY_BYTES))
    file = spool._body._file
    spool.close()
    spool.close()
    assert file.closed


def test_nothing_can_be_written_to_a_closed_clip(spool):
    spool.close()
    with pytest.raises(WriteError, match="closed while it was being written"):
        spool.write(b"late")
