"""Training by the clock: a stage is told how many seconds it has, and its schedule ends exactly when they
do.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class TimeBox:
    """Wall-clock seconds for this call, and which part of the whole schedule they cover.

    A stage that needs two calls runs the first with `until=0.5`, and the second takes over where it stopped.
    """

    seconds: float
    begins_at: float = 0.0
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
        """Where the whole schedule stands, 0 to 1."""
        share = min(1.0, self.elapsed / self.seconds)
        return self.begins_at + (self.until - self.begins_at) * share


def learning_rate_scale(progress: float, step: int, *, warmup_steps: int, hold_until: float) -> float:
    """A warm-up by steps, a plateau, and a cosine down to nothing at the end of the schedule."""
    warmup = min(1.0, (step + 1) / warmup_steps)
    if progress <= hold_until:
        return warmup
    fall = (progress - hold_until) / (1 - hold_until)
    return warmup * 0.5 * (1 + math.cos(math.pi * min(1.0, fall)))


@dataclass(slots=True)
class Every:
    """True once per interval: for logs and checkpoints."""

    seconds: float
    last: float = field(default_factory=time.monotonic)

    def is_due(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


class Pace:
    """Steps per second since the last look."""

    def __init__(self) -> None:
        self._since, self._steps = time.monotonic(), 0

    def read(self, steps: int) -> float:
        now = time.monotonic()
        pace = (steps - self._steps) / max(1e-6, now - self._since)
        self._since, self._steps = now, steps
        return pace
