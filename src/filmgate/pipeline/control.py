"""Progress reports of a running clip, and its cancellation."""

from collections.abc import Callable
from dataclasses import dataclass
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


class Control:
    """Receives the progress of a running clip and can cancel it from any thread.

    A worker overrides the methods that let clips follow each other on the device. They may be called more
    than once: a clip whose fast frames contain NaN enters the device again.
    """

    def __init__(self, on_progress: Callable[[Step], None] | None = None, stop: Event | None = None) -> None:
        self._on_progress = on_progress
        self._stop = stop or Event()

    def cancel(self) -> None:
        """Stop the clip within one denoising step or one chunk."""
        self._stop.set()

    def check(self) -> None:
        """Raise Cancelled if the clip was cancelled; called between steps and between chunks."""
        if self._stop.is_set():
            raise Cancelled("the clip was cancelled")

    def report(self, stage: Stage, done: int, total: int) -> None:
        if self._on_progress is not None:
            self._on_progress(Step(stage, done, total))

    def prepare_device(self) -> None:
        """Called before the clip allocates anything, on the stream that prepares it beside another clip."""

    def enter_device(self) -> None:
        """Called before the first denoising step, or before decode if there are none. May wait."""

    def leave_device(self) -> None:
        """Called when the last work of the clip is queued."""

    def step_down(self, rung: str) -> None:
        """Called with the name of a rung when memory ran out on the one above it."""
