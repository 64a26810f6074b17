"""The stream cipher is Tink's, byte for byte, and refuses whatever was done to the bytes."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import ObjectCorrupt
from filmgate.store.local.segments import (
    HEADER_BYTES,
    SEGMENT_BYTES,
    TAG_BYTES,
    SegmentReader,
    encrypt,
    plain_size,
)

KEY, PLACE = bytes(range(32)), b"filmgate object\0acme/x"
FIRST, NEXT = SEGMENT_BYTES - TAG_BYTES - HEADER_BYTES, SEGMENT_BYTES - TAG_BYTES

# Written by Tink 1.16.1 (AesGcmHkdfStreamingKey, AES256, SHA256, 1 MiB segments, raw prefix) on 2026-11-15.
BY_TINK = bytes.fromhex(
    "2849326cd747bc5e543603afee59f38e16a3a3d5f5f43aa8c9f43bc56a781e80abec4ae1c5d1bb67c869d2b9c549b54f"
    "b9703eca8bbc975a935e6fc04b82598a5e323d18cf3b65fc25b8bad8976fd525e61a55f87b73b10e0e659b27b0bbe041"
    "dc90c4ba2e35e13f6575fecf33d8122411df2489b22a69c47c59dec77777109fa295bd73fc438ba3ada59dc75301cfa8"
    "f7b61d69815cbbad0ac2b5c3"
)


def pattern(size):
    return bytes(bytearray((i * 7 + 3) % 256 for i in range(256)) * (size // 256 + 1))[:size]


def reader_of(sealed, key=KEY, place=PLACE):
    return SegmentReader(io.BytesIO(sealed), 0, key, place)


def open_all(sealed, **other):
    reader = reader_of(sealed, **other)
    return b"".join(reader.read(0, reader.size_bytes))


@pytest.fixture(scope="module")
def long_stream():
    return b"".join(encrypt(KEY, PLACE, [pattern(FIRST + NEXT + 100)]))


def test_a_stream_that_tink_wrote_is_read():
    assert open_all(BY_TINK) == pattern(100)


@pytest.mark.parametrize("size", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + NEXT, FIRST + NEXT + 1])
def test_every_size_around_a_segment_border_comes_back(size):
    sealed = b"".join(encrypt(KEY, PLACE, [pattern(size)]))
    assert plain_size(len(sealed)) == size
    assert open_all(sealed) == pattern(size)


@given(st.lists(st.binary(max_size=400), max_size=20))
def test_how_the_stream_is_cut_does_not_matter(chunks):
    assert open_all(b"".join(encrypt(KEY, PLACE, chunks))) == b"".join(chunks)


@given(st.data())
def test_any_range_is_the_same_bytes_as_of_the_whole(long_stream, data):
    size = FIRST + NEXT + 100
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    assert b"".join(reader_of(long_stream).read(start, stop)) == pattern(size)[start:stop]


def test_a_range_reads_only_the_segments_it_touches(long_stream):
    file = io.BytesIO(long_stream)
    reader, reads = SegmentReader(file, 0, KEY, PLACE), []
    file.read = lambda size: reads.append(size) or io.BytesIO.read(file, size)
    assert b"".join(reader.read(FIRST + 5, FIRST + 6)) == pattern(FIRST + 6)[-1:]
    assert reads == [SEGMENT_BYTES]


def test_two_streams_of_the_same_bytes_share_nothing():
    one, other = (b"".join(encrypt(KEY, PLACE, [pattern(64)])) for _ in range(2))
    assert one[HEADER_BYTES:] != other[HEADER_BYTES:]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s[:-1],
        lambda s: s[: 2 * SEGMENT_BYTES],
        lambda s: s[:SEGMENT_BYTES],
        lambda s: s[:HEADER_BYTES],
        lambda s: b"",
        lambda s: s + b"\0",
        lambda s: s[:SEGMENT_BYTES] + s[SEGMENT_BYTES : 2 * SEGMENT_BYTES] * 2 + s[2 * SEGMENT_BYTES :],
        lambda s: s[:SEGMENT_BYTES] + s[2 * SEGMENT_BYTES :],
        lambda s: bytes([s[0] ^ 1]) + s[1:],
        lambda s: s[:20] + bytes([s[20] ^ 1]) + s[21:],
        lambda s: s[:-5] + bytes([s[-5] ^ 1]) + s[-4:],
    ],
)
def test_cut_moved_doubled_or_changed_bytes_are_refused(long_stream, spoil):
    with pytest.raises(ObjectCorrupt):
        open_all(spoil(long_stream))


def test_another_key_or_another_place_opens_nothing(long_stream):
    for other in ({"key": bytes(32)}, {"place": b"filmgate object\0globex/x"}):
        with pytest.raises(ObjectCorrupt):
            open_all(long_stream, **other)
