"""Training by wall-clock time: a stage has a number of seconds, and its schedule ends when they are over."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class TimeBox:
    """The seconds of this run, and the part of the whole schedule that they cover.

    A stage that needs two runs starts the first with `until=0.5`. The second continues from there.
    """

    seconds: float
    starts_at: float = 0.0
    until: float = 1.0
    clock: Callable[[], float] = time.monotonic
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started

    @property
    def is_over(self) -> bool:
        return self.elapsed >= self.seconds

    @property
    def progress(self) -> float:
        """The position in the whole schedule, 0 to 1."""
        share = min(1.0, self.elapsed / self.seconds)
        return self.starts_at + (self.until - self.starts_at) * share


def learning_rate_scale(progress: float, step: int, *, warmup_steps: int, hold_until: float) -> float:
    """A warm-up by steps, a plateau, then a cosine to zero at the end of the schedule."""
    warmup = min(1.0, (step + 1) / warmup_steps)
    if progress <= hold_until:
        return warmup
    decay = (progress - hold_until) / (1 - hold_until)
    return warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, decay)))


@dataclass(slots=True)
class Every:
    """`is_due` is true once per interval, for logs and checkpoints."""

    seconds: float
    last: float = field(default_factory=time.monotonic)

    def is_due(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


class Pace:
    """Steps per second since the last `read`."""

    def __init__(self) -> None:
        self._since, self._steps = time.monotonic(), 0

    def read(self, steps: int) -> float:
        now = time.monotonic()
        pace = (steps - self._steps) / max(1e-6, now - self._since)
        self._since, self._steps = now, steps
        return pace
