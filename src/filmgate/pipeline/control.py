"""Progress reports of a running clip, and its cancellation."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event

from filmgate.errors import Cancelled


class Stage(StrEnum):
    """The running part of the pipeline. Decode, transfer and encode overlap and are reported as DECODE."""

    TEXT = "text"
    DENOISE = "denoise"
    DECODE = "decode"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` steps or frames that the device has finished; queued work does not count."""

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
    clip is queued. The last two may be called more than once.
    `on_step_down` is called with the name of the rung when memory ran out on the one above it.
    """

    on_progress: Callable[[Progress], None] = _ignore
    _stop: Event = field(default_factory=Event)
    enter_device: Callable[[], None] = _do_nothing
    leave_device: Callable[[], None] = _do_nothing
    on_step_down: Callable[[str], None] = _ignore
    prepare_device: Callable[[], None] = _do_nothing

    def cancel(self) -> None:
        """Stop the clip within one denoising step or one chunk."""
        self._stop.set()

    def check(self) -> None:
        """Raise Cancelled if the clip was cancelled; called between steps and between chunks."""
        if self._stop.is_set():
            raise Cancelled("the clip was cancelled")

    def report(self, stage: Stage, done: int, total: int) -> None:
        self.on_progress(Progress(stage, done, total))
