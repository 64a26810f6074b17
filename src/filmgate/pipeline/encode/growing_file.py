"""A file in memory that can be read from the front while it is still being written at its end."""

from collections.abc import Iterator
from io import SEEK_CUR, SEEK_END, SEEK_SET
from threading import Condition

from filmgate.errors import WriteError

PIECE_BYTES = 1 << 20


class GrowingFile:
    """What a muxer needs of a file, and readers on other threads that wait for more of it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._position = 0
        self._changed = Condition()
        self._is_whole = False
        self.closed = False

    def write(self, data: bytes) -> int:
        with self._changed:
            end = self._position + len(data)
            if self._position > len(self._data):
                self._data.extend(bytes(self._position - len(self._data)))
            self._data[self._position : end] = data
            self._position = end
            self._changed.notify_all()
        return len(data)

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        base = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: len(self._data)}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def seekable(self) -> bool:
        return True

    def finish(self) -> None:
        """It is whole: readers end where it ends."""
        with self._changed:
            self._is_whole = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more comes. Readers of a file that was not finished are told so."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def getvalue(self) -> bytes:
        return bytes(self._data)

    def front(self, stop: int) -> bytes:
        """The first bytes, for when it is whole: until then they may still change."""
        assert self._is_whole
        return bytes(self._data[:stop])

    def follow(self, start: int) -> Iterator[bytes]:
        """Everything from `start` on, as it comes. Raises WriteError when the file is given up."""
        while piece := self._await_piece(start):
            start += len(piece)
            yield piece

    def _await_piece(self, start: int) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._is_whole or self.closed or len(self._data) > start)
            if self.closed and not self._is_whole:
                raise WriteError("the clip was given up while it was being made")
            return bytes(self._data[start : start + PIECE_BYTES])
