"""Encryption of seekable streams: Tink's AES-GCM-HKDF streaming AEAD (AES256, SHA256, 1 MiB segments).

    header  = length (1) | salt (32) | nonce prefix (7)
    key     = HKDF-SHA256(data key, salt, info = associated data)
    segment = AES-GCM(key, nonce prefix | segment number (4) | is last (1), plain)

The first segment is shorter by the header, so that segment n lies at n MiB. The number keeps segments in
their places and the last flag shows that none is missing at the end. ADR 0012 has the reasons.
"""

import secrets
from collections.abc import Iterable, Iterator
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


def encrypt(key: bytes, associated: bytes, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The header and then the segments, each as soon as it is full."""
    salt, prefix = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(PREFIX_BYTES)
    cipher = _cipher(key, salt, associated)
    yield bytes([HEADER_BYTES]) + salt + prefix
    pending, number, room = bytearray(), 0, _ROOM - HEADER_BYTES
    for chunk in chunks:
        pending += chunk
        # A full segment waits until more follows: only then is it known not to be the last.
        while len(pending) > room:
            yield cipher.encrypt(_nonce(prefix, number, is_last=False), bytes(pending[:room]), None)
            del pending[:room]
            number, room = number + 1, _ROOM
    yield cipher.encrypt(_nonce(prefix, number, is_last=True), bytes(pending), None)


def plain_size(encrypted_bytes: int) -> int:
    """The plain size of a stream of this length; ObjectCorrupt when no stream has this length."""
    segments = max(1, -(-encrypted_bytes // SEGMENT_BYTES))
    size = encrypted_bytes - HEADER_BYTES - segments * TAG_BYTES
    if size < 0 or (segments > 1 and encrypted_bytes - (segments - 1) * SEGMENT_BYTES <= TAG_BYTES):
        raise ObjectCorrupt("a stored object was cut short")
    return size


class SegmentReader:
    """Opens any range of an encrypted stream that starts at `offset` of a file."""

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
        """The plain bytes [start, stop), segment by segment. An empty range still verifies one segment."""
        first = (start + HEADER_BYTES) // _ROOM
        final = max(first, (max(start, stop - 1) + HEADER_BYTES) // _ROOM)
        for number in range(min(first, self._last), min(final, self._last) + 1):
            plain = self._open(number)
            begins = number * _ROOM - HEADER_BYTES if number else 0
            piece = plain[max(0, start - begins) : max(0, stop - begins)]
            if piece:
                yield piece

    def _open(self, number: int) -> bytes:
        skip = 0 if number else HEADER_BYTES
        self._file.seek(self._offset + number * SEGMENT_BYTES + skip)
        sealed = self._file.read(SEGMENT_BYTES - skip)
        nonce = _nonce(self._prefix, number, is_last=number == self._last)
        try:
            return self._cipher.decrypt(nonce, sealed, None)
        except (InvalidTag, ValueError) as exc:
            raise ObjectCorrupt("a stored object does not verify") from exc


def _cipher(key: bytes, salt: bytes, associated: bytes) -> AESGCM:
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=associated).derive(key))


def _nonce(prefix: bytes, number: int, *, is_last: bool) -> bytes:
    return prefix + number.to_bytes(4) + bytes([is_last])
