"""Progress reports of a running clip, and its cancellation."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from threading import Event

from filmgate.errors import Cancelled
from filmgate.jobs import Stage


@dataclass(frozen=True, slots=True)
class Step:
    """`done` of `total` steps or frames of a stage that the device has finished; queued work does not count.

    A stage starts with `done` 0. Decode, transfer and encode overlap and are reported as DECODE.
    """

    stage: Stage
    done: int
    total: int


def _ignore(_: object) -> None:
    return


def _do_nothing() -> None:
    return


@dataclass(frozen=True, slots=True)
class Control:
    """Receives the progress of a running clip and can cancel it from any thread.

    `prepare_device` is called before the clip allocates anything, on the stream that prepares it while the
    previous clip is decoded. `enter_device` is called before the first denoising step, or before decode if
    there are no steps; it may wait for the previous clip. `leave_device` is called when the last work of the
    clip is queued. Both may be called more than once: a clip whose fast frames contain NaN enters again.
    `on_step_down` is called with the name of the rung when memory ran out on the one above it.
    """

    on_progress: Callable[[Step], None] = _ignore
    _: KW_ONLY
    stop: Event = field(default_factory=Event)
    enter_device: Callable[[], None] = _do_nothing
    leave_device: Callable[[], None] = _do_nothing
    on_step_down: Callable[[str], None] = _ignore
    prepare_device: Callable[[], None] = _do_nothing

    def cancel(self) -> None:
        """Stop the clip within one denoising step or one chunk."""
        self.stop.set()

    def check(self) -> None:
        """Raise Cancelled if the clip was cancelled; called between steps and between chunks."""
        if self.stop.is_set():
            raise Cancelled("the clip was cancelled")

    def report(self, stage: Stage, done: int, total: int) -> None:
        self.on_progress(Step(stage, done, total))
