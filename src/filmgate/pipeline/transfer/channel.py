"""A bounded queue between two threads. Either side can close it, so neither waits for one that has ended."""

import atexit
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from threading import Condition, Thread
from typing import Generic, TypeVar

from filmgate.errors import Cancelled, DeviceError
from filmgate.telemetry.logs import Log

log = Log("transfer")
T = TypeVar("T")


class ChannelClosed(Exception):  # noqa: N818 - a signal, not a failure
    """The channel was closed, or it was finished and is empty."""


class Channel(Generic[T]):
    """A FIFO queue. After `finish` the reader gets the remaining items; `close` ends both sides now."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._changed = Condition()
        self._is_finished = False
        self.is_closed = False

    def put(self, item: T) -> None:
        """Wait until there is room, then add the item. Raises ChannelClosed once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or len(self._items) < self._capacity)
            if self.is_closed:
                raise ChannelClosed
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """Wait for an item and return it. Raises ChannelClosed once closed, or finished and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or self._is_finished or bool(self._items))
            if self.is_closed or not self._items:
                raise ChannelClosed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def finish(self) -> None:
        """Announce that there are no more items."""
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def close(self) -> None:
        """End both sides now and drop the remaining items."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()


def pull(
    produce: Callable[[Callable[[T], None]], None],
    *,
    capacity: int,
    stop: Callable[[], None],
    name: str = "filmgate-pull",
    threads: Executor | None = None,
) -> Generator[T, None, None]:
    """Run `produce(emit)` on another thread and yield the items it emits, at most `capacity` ahead.

    The thread is one of `threads`, or a new one with this name.
    An error in the thread is raised here, after the items it emitted. Closing the generator, or the end of
    the program, calls `stop` and waits for the thread, whose next `emit` raises Cancelled. If the thread ends
    with another error, closing logs it, or raises it if it is a DeviceError: the device fails for the next
    reader too.
    """
    channel: Channel[T] = Channel(capacity)
    failure: list[BaseException] = []

    def emit(item: T) -> None:
        try:
            channel.put(item)
        except ChannelClosed as exc:
            raise Cancelled("the reader of this clip stopped") from exc

    def run() -> None:
        try:
            produce(emit)
        except BaseException as exc:  # noqa: BLE001 - raised again for the caller
            failure.append(exc)
        finally:
            channel.finish()

    wait = _start(run, name, threads)

    def end() -> None:
        stop()
        channel.close()
        wait()

    is_finished = False
    atexit.register(end)  # a thread that still runs torch when the interpreter ends aborts the process
    try:
        while True:
            try:
                item = channel.get()
            except ChannelClosed:
                is_finished = True
                break
            yield item
    finally:
        atexit.unregister(end)
        end()
        if failure and not is_finished:
            _report_unread(failure[0])
    if failure:
        raise failure[0]


def _start(run: Callable[[], None], name: str, threads: Executor | None) -> Callable[[], object]:
    """Run it on one of these threads, or on a new one. Returns what waits for its end."""
    if threads is not None:
        return threads.submit(run).result
    thread = Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread.join


def _report_unread(error: BaseException) -> None:
    if isinstance(error, DeviceError):
        raise error
    if not isinstance(error, Cancelled):
        log.warning("an error followed after the reader of a clip had stopped", error=error)
