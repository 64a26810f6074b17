"""What a running clip reports and how it is stopped."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event

from filmgate.errors import Cancelled


class Stage(StrEnum):
    """The part of the pipeline that is at work; decode, copy and encode overlap and count as decode."""

    TEXT = "text"
    DENOISE = "denoise"
    DECODE = "decode"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Progress:
    """Work the GPU has finished, never work that was only queued: `done` of `total` steps or frames."""

    stage: Stage
    done: int
    total: int


def _ignore(_: Progress) -> None:
    return


@dataclass(frozen=True, slots=True)
class Control:
    """The caller's hand on a running clip: hears of progress, may cancel from any thread."""

    on_progress: Callable[[Progress], None] = _ignore
    _stop: Event = field(default_factory=Event)

    def cancel(self) -> None:
        """Stop within one denoising step or one chunk."""
        self._stop.set()

    def check(self) -> None:
        """Raise Cancelled once cancelled; called between steps and between chunks."""
        if self._stop.is_set():
            raise Cancelled("the clip was cancelled")

    def report(self, stage: Stage, done: int, total: int) -> None:
        self.on_progress(Progress(stage, done, total))
