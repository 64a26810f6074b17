"""The stream cipher writes Tink's format and rejects every change to the bytes."""

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


def sealed(chunks, **head):
    """The encrypted stream, with every piece at its offset."""
    file = io.BytesIO()
    for offset, data in encrypt(KEY, PLACE, chunks, **head):
        file.seek(offset)
        file.write(data)
    return file.getvalue()


def reader_of(stream, key=KEY, place=PLACE):
    return SegmentReader(io.BytesIO(stream), 0, key, place)


def open_all(stream, **other):
    reader = reader_of(stream, **other)
    return b"".join(reader.read(0, reader.size_bytes))


@pytest.fixture(scope="module")
def long_stream():
    return sealed([pattern(FIRST + NEXT + 100)])


def test_a_stream_written_by_tink_can_be_read():
    assert open_all(BY_TINK) == pattern(100)


@pytest.mark.parametrize("size", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + NEXT, FIRST + NEXT + 1])
def test_every_size_around_a_segment_border_is_read_back(size):
    stream = sealed([pattern(size)])
    assert plain_size(len(stream)) == size
    assert open_all(stream) == pattern(size)


@given(st.lists(st.binary(max_size=400), max_size=20))
def test_the_sizes_of_the_chunks_do_not_matter(chunks):
    assert open_all(sealed(chunks)) == b"".join(chunks)


@pytest.mark.parametrize("head_bytes", [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + NEXT, FIRST + NEXT + 7])
@pytest.mark.parametrize("body_bytes", [0, 1, NEXT - 8, NEXT - 7, NEXT, 2 * NEXT + 5])
def test_a_stream_whose_head_is_known_last_is_the_same_stream(head_bytes, body_bytes):
    plain = pattern(head_bytes + body_bytes)
    head, body = plain[:head_bytes], plain[head_bytes:]
    chunks = (body[at : at + 300_001] for at in range(0, body_bytes, 300_001))
    stream = sealed(chunks, late_head=lambda: head, head_bytes=head_bytes)
    assert plain_size(len(stream)) == len(plain)
    assert open_all(stream) == plain


def test_segments_behind_a_late_head_are_encrypted_before_the_head_is_known():
    offsets, is_head_read = [], []
    head = lambda: is_head_read.append(len(offsets)) or bytes(10)  # noqa: E731
    for offset, _ in encrypt(KEY, PLACE, [bytes(3 * NEXT)], late_head=head, head_bytes=10):
        offsets.append(offset)
    assert offsets == [0, *(n * SEGMENT_BYTES for n in (1, 2, 3)), HEADER_BYTES]
    assert is_head_read == [4]


def test_a_late_head_of_another_size_than_announced_is_rejected():
    with pytest.raises(ValueError, match="the head has 9 bytes instead of the announced 10"):
        sealed([b"body"], late_head=lambda: bytes(9), head_bytes=10)


def test_a_late_head_without_a_body_may_be_shorter_than_announced():
    assert open_all(sealed([], late_head=lambda: b"all", head_bytes=FIRST + 10)) == b"all"


@given(st.data())
def test_any_range_equals_the_same_range_of_the_whole(long_stream, data):
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


def test_two_streams_of_the_same_bytes_differ():
    one, other = (sealed([pattern(64)]) for _ in range(2))
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
def test_truncated_moved_repeated_or_changed_bytes_are_rejected(long_stream, spoil):
    with pytest.raises(ObjectCorrupt):
        open_all(spoil(long_stream))


def test_another_key_or_another_name_is_rejected(long_stream):
    for other in ({"key": bytes(32)}, {"place": b"filmgate object\0globex/x"}):
        with pytest.raises(ObjectCorrupt):
            open_all(long_stream, **other)
