"""A bounded queue between two threads that either side can close, so that nobody waits for a dead partner."""

from collections import deque
from threading import Condition
from typing import Generic, TypeVar

T = TypeVar("T")


class ChannelClosed(Exception):  # noqa: N818 - a signal, not a failure
    """The channel was closed, or it was finished and is empty."""


class Channel(Generic[T]):
    """First in, first out. `finish` lets the reader drain what is there; `close` ends both sides at once."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._changed = Condition()
        self._is_finished = False
        self._is_closed = False

    def put(self, item: T) -> None:
        """Wait for room, then add; raises ChannelClosed once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._items) < self._capacity)
            if self._is_closed:
                raise ChannelClosed
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """Wait for an item; raises ChannelClosed once closed, or finished and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._is_finished or bool(self._items))
            if self._is_closed or not self._items:
                raise ChannelClosed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def finish(self) -> None:
        """No more items will come."""
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """End both sides now; items in the channel are dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
