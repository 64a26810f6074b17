"""Quality levels: which passes through the denoiser a clip computes. The others are predicted from them.

The plan of a level depends only on the number of steps. The work of a clip is therefore known before it runs:
admission, forecast, cost and planner all read it here.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

FULL = "full"


class StepPlan(NamedTuple):
    """Which passes of one step are computed: the one with the prompt, and the one without it for guidance."""

    with_prompt: bool
    without_prompt: bool


@dataclass(frozen=True, slots=True)
class QualityLevel:
    """One level.

    The first and the last steps are computed: the picture forms in the first, and the last are the longest.
    Of the steps between, one in `interval` is computed. In the second half of a clip, where guidance hardly
    changes, one in `guidance_interval` of the computed steps also computes the pass without the prompt.
    """

    name: str
    description: str
    start_share: float = 1.0
    end_share: float = 0.0
    interval: int = 1
    guidance_interval: int = 1

    def plan(self, steps: int) -> tuple[StepPlan, ...]:
        """The passes of every step."""
        start = round(self.start_share * steps) if steps >= MIN_STEPS else steps
        end = steps - max(1, round(self.end_share * steps))
        plan, guided = [], 0
        for step in range(steps):
            is_computed = step < start or step >= end or (step - start + 1) % self.interval == 0
            is_late = start <= step < steps - 1 and step >= steps // 2
            guided += is_computed and is_late
            is_guided = is_computed and not (is_late and guided % self.guidance_interval)
            plan.append(StepPlan(is_computed, is_guided))
        return tuple(plan)


MIN_STEPS = 20
"""Clips of fewer steps compute every pass: their steps are too far apart to predict one from another."""

LEVELS = (
    QualityLevel(FULL, "Computes every pass."),
    QualityLevel(
        "balanced",
        "Computes two thirds of the passes and predicts the others; 55 dB from full on Flipbook at 30 "
        "steps without guidance, less with guidance.",
        start_share=0.23,
        end_share=0.1,
        interval=2,
    ),
    QualityLevel(
        "draft",
        "Computes half of the passes and predicts the others; 46 dB from full on Flipbook at 30 steps "
        "without guidance, less with guidance.",
        start_share=0.23,
        end_share=0.1,
        interval=3,
        guidance_interval=2,
    ),
)
LEVEL_NAMES = tuple(level.name for level in LEVELS)
_BY_NAME = {level.name: level for level in LEVELS}


def levels_of(names: Iterable[str]) -> list[QualityLevel]:
    """The levels with these names; a name of a newer version has no description."""
    return [_BY_NAME.get(name, QualityLevel(name, "")) for name in names]


@lru_cache(maxsize=1024)
def plan_steps(level: str, steps: int) -> tuple[StepPlan, ...]:
    """The passes that a clip of this level computes; all of them for a level that is not known."""
    return _BY_NAME.get(level, _BY_NAME[FULL]).plan(steps)


def effective_level(level: str, steps: int) -> str:
    """The level that a clip gets: `full` if this one would predict nothing in so few steps."""
    return level if not all(map(all, plan_steps(level, steps))) else FULL


@lru_cache(maxsize=1024)
def full_steps(level: str, steps: int, *, has_guidance: bool) -> float:
    """The work of a clip in steps that compute every pass."""
    plan = plan_steps(level, steps)
    return sum(sum(step) / 2 if has_guidance else step.with_prompt for step in plan)
