"""Turns work that calls back into a stream that can be pulled, and closed."""

from collections.abc import Callable, Generator
from threading import Thread

from filmgate.errors import Cancelled
from filmgate.pipeline.channel import Channel, ChannelClosed
from filmgate.pipeline.control import Control
from filmgate.worker.base import Output

Emit = Callable[[Output], None]
_CAPACITY = 4


def pull(produce: Callable[[Emit, Callable[[Control], None]], None]) -> Generator[Output, None, None]:
    """Run `produce` on a thread of its own and yield what it emits, a few outputs ahead at most.

    `produce` gets `emit` and a place to leave its Control: closing the stream cancels that, so the device
    stops within one step or one chunk, and waits until it has.
    """
    channel: Channel[Output] = Channel(_CAPACITY)
    controls: list[Control] = []
    failure: list[BaseException] = []

    def emit(output: Output) -> None:
        try:
            channel.put(output)
        except ChannelClosed as exc:
            raise Cancelled("nobody wants this clip any more") from exc

    def run() -> None:
        try:
            produce(emit, controls.append)
        except BaseException as exc:  # noqa: BLE001 - a thread's edge: raised again for the caller
            failure.append(exc)
        finally:
            channel.finish()

    thread = Thread(target=run, name="filmgate-render", daemon=True)
    thread.start()
    try:
        while True:
            try:
                output = channel.get()
            except ChannelClosed:
                break
            yield output
    finally:
        for control in controls:
            control.cancel()
        channel.close()
        thread.join()
    if failure:
        raise failure[0]
