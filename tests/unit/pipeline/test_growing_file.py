"""A file that is read while it is written."""

import threading

import pytest

from filmgate.errors import WriteError
from filmgate.pipeline.encode.growing_file import PIECE_BYTES, GrowingFile
from tests.waiting import wait_until


def test_it_is_a_file_a_muxer_can_seek_in():
    file = GrowingFile()
    assert file.write(b"type") == 4
    assert file.seek(10) == 10
    file.write(b"packets")
    assert file.seek(4) == file.tell() == 4
    file.write(b"index!")
    assert file.seek(0, 2) == 17
    assert file.seek(-7, 1) == 10
    assert (file.getvalue(), file.seekable()) == (b"typeindex!packets", True)


def test_a_reader_gets_what_is_there_and_waits_for_the_rest():
    file, got, is_over = GrowingFile(), [], threading.Event()

    def read():
        got.extend(file.follow(4))
        is_over.set()

    reader = threading.Thread(target=read, daemon=True)
    file.write(b"headone")
    reader.start()
    wait_until(lambda: got == [b"one"], interval=0.001)
    file.write(b"two")
    file.finish()
    file.close()
    assert is_over.wait(60)
    reader.join(60)
    assert b"".join(got) == b"onetwo"
    assert file.front(4) == b"head"
    assert b"".join(file.follow(4)) == b"onetwo"


def test_pieces_are_bounded():
    file = GrowingFile()
    file.write(bytes(PIECE_BYTES * 2 + 1))
    file.finish()
    assert [len(piece) for piece in file.follow(0)] == [PIECE_BYTES, PIECE_BYTES, 1]


def test_a_reader_of_a_file_that_is_given_up_is_told():
    file = GrowingFile()
    file.write(b"half")
    reading = file.follow(0)
    assert next(reading) == b"half"
    file.close()
    with pytest.raises(WriteError, match="given up"):
        next(reading)
