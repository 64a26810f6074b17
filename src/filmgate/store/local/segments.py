"""Encryption of seekable streams: Tink's AES-GCM-HKDF streaming AEAD (AES256, SHA256, 1 MiB segments).

    header  = length (1) | salt (32) | nonce prefix (7)
    key     = HKDF-SHA256(data key, salt, info = associated data)
    segment = AES-GCM(key, nonce prefix | segment number (4) | is last (1), plain)

The header shortens the first segment, so segment n starts at n MiB. The number in the nonce detects moved
segments, and the last flag detects a truncated stream. ADR 12 gives the reasons.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from filmgate.errors import ObjectCorrupt

SEGMENT_BYTES = 1 << 20
SALT_BYTES = 32
PREFIX_BYTES = 7
HEADER_BYTES = 1 + SALT_BYTES + PREFIX_BYTES
TAG_BYTES = 16
_ROOM = SEGMENT_BYTES - TAG_BYTES


def encrypt(
    key: bytes,
    associated: bytes,
    body: Iterable[bytes],
    late_head: Callable[[], bytes] | None = None,
    head_bytes: int = 0,
) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes): the header, then each segment as soon as its plain bytes are known.

    With `late_head`, the plain stream starts with the `head_bytes` bytes that it returns after `body` has
    ended; the segments that contain them come last. Only a head without a body may have another size.
    """
    salt, prefix = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(PREFIX_BYTES)
    cipher = _cipher(key, salt, associated)

    def seal(number: int, plain: bytes, is_last: bool) -> tuple[int, bytes]:  # noqa: FBT001
        offset = number * SEGMENT_BYTES if number else HEADER_BYTES
        return offset, cipher.encrypt(_nonce(prefix, number, is_last=is_last), plain, None)

    yield 0, bytes([HEADER_BYTES]) + salt + prefix
    if late_head is None:
        yield from (seal(*segment) for segment in _split(body))
        return
    segments = _split(body, head_bytes)
    _, start, is_whole = next(segments)  # shares a segment with the end of the head
    yield from (seal(*segment) for segment in segments)
    head = late_head()
    # A head of another size would encrypt two different segments under one nonce.
    if start and len(head) != head_bytes:
        raise ValueError(f"the head has {len(head)} bytes instead of the announced {head_bytes}")
    for number, plain, is_last in _split([head, start]):
        yield seal(number, plain, is_last and is_whole)


def _split(chunks: Iterable[bytes], skipped_bytes: int = 0) -> Iterator[tuple[int, bytes, bool]]:
    """Split a plain stream, from `skipped_bytes` on, into (segment number, bytes, is last)."""
    number, used = divmod(skipped_bytes + HEADER_BYTES, _ROOM)
    pending, room = bytearray(), _ROOM - used
    for chunk in chunks:
        pending += chunk
        # Only bytes that follow a full segment prove that it is not the last.
        while len(pending) > room:
            yield number, bytes(pending[:room]), False
            del pending[:room]
            number, room = number + 1, _ROOM
    yield number, bytes(pending), True


def plain_size(encrypted_bytes: int) -> int:
    """Return the plain size of an encrypted stream. Raises ObjectCorrupt if no stream has this length."""
    segments = max(1, -(-encrypted_bytes // SEGMENT_BYTES))
    size = encrypted_bytes - HEADER_BYTES - segments * TAG_BYTES
    if size < 0 or (segments > 1 and encrypted_bytes - (segments - 1) * SEGMENT_BYTES <= TAG_BYTES):
        raise ObjectCorrupt("a stored object is truncated")
    return size


class SegmentReader:
    """Decrypts any range of an encrypted stream that starts at `offset` of a file."""

    def __init__(self, file: BinaryIO, offset: int, key: bytes, associated: bytes) -> None:
        self._file = file
        self._offset = offset
        self.size_bytes = plain_size(file.seek(0, 2) - offset)
        file.seek(offset)
        header = file.read(HEADER_BYTES)
        if header[:1] != bytes([HEADER_BYTES]):
            raise ObjectCorrupt("a stored object has no header")
        self._cipher = _cipher(key, header[1 : 1 + SALT_BYTES], associated)
        self._prefix = header[1 + SALT_BYTES :]
        self._last = (self.size_bytes + HEADER_BYTES - 1) // _ROOM

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the plain bytes [start, stop) by segment. An empty range still verifies one segment."""
        first = (start + HEADER_BYTES) // _ROOM
        final = max(first, (max(start, stop - 1) + HEADER_BYTES) // _ROOM)
        for number in range(min(first, self._last), min(final, self._last) + 1):
            plain = self._decrypt(number)
            origin = number * _ROOM - HEADER_BYTES if number else 0
            piece = plain[max(0, start - origin) : max(0, stop - origin)]
            if piece:
                yield piece

    def _decrypt(self, number: int) -> bytes:
        skip = 0 if number else HEADER_BYTES
        self._file.seek(self._offset + number * SEGMENT_BYTES + skip)
        sealed = self._file.read(SEGMENT_BYTES - skip)
        nonce = _nonce(self._prefix, number, is_last=number == self._last)
        try:
            return self._cipher.decrypt(nonce, sealed, None)
        except (InvalidTag, ValueError) as exc:
            raise ObjectCorrupt("a stored object failed verification") from exc


def _cipher(key: bytes, salt: bytes, associated: bytes) -> AESGCM:
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=associated).derive(key))


def _nonce(prefix: bytes, number: int, *, is_last: bool) -> bytes:
    return prefix + number.to_bytes(4) + bytes([is_last])
