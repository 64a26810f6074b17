"""A bounded queue between two threads that either side can close, so that nobody waits for a dead partner."""

from collections import deque
from collections.abc import Callable, Generator
from threading import Condition, Thread
from typing import Generic, TypeVar

from filmgate.errors import Cancelled

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


def pull(
    produce: Callable[[Callable[[T], None]], None], *, capacity: int, stop: Callable[[], None], name: str
) -> Generator[T, None, None]:
    """Run `produce(emit)` on a thread of its own and yield what it emits, at most `capacity` ahead.

    An error of the thread is raised here, after everything it emitted. Closing the generator calls `stop`
    and waits for the thread; its next `emit` raises Cancelled.
    """
    channel: Channel[T] = Channel(capacity)
    failure: list[BaseException] = []

    def emit(item: T) -> None:
        try:
            channel.put(item)
        except ChannelClosed as exc:
            raise Cancelled("nobody wants the rest of this clip") from exc

    def run() -> None:
        try:
            produce(emit)
        except BaseException as exc:  # noqa: BLE001 - a thread's edge: raised again for the caller
            failure.append(exc)
        finally:
            channel.finish()

    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = channel.get()
            except ChannelClosed:
                break
            yield item
    finally:
        stop()
        channel.close()
        thread.join()
    if failure:
        raise failure[0]
