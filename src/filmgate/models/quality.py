"""Quality levels: which passes through the denoiser a clip computes. The others are predicted from them.

The plan of a level depends on the number of steps alone. So the work of a clip is known before it runs:
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

    def computes(self, branch: int) -> bool:
        return self[branch]


@dataclass(frozen=True, slots=True)
class QualityLevel:
    """One level.

    The first `start_share` of the steps and the last step are computed. Of those between, one in `interval`
    is, and of these, one in `guidance_interval` computes the pass without the prompt too.
    """

    name: str
    description: str
    start_share: float = 1.0
    interval: int = 1
    guidance_interval: int = 1

    def plan(self, steps: int) -> tuple[StepPlan, ...]:
        """The passes of every step."""
        start = max(MIN_START_STEPS, round(self.start_share * steps)) if steps >= MIN_STEPS else steps
        return tuple(self._plan_step(step, start, steps) for step in range(steps))

    def _plan_step(self, step: int, start: int, steps: int) -> StepPlan:
        if step < start or step == steps - 1:
            return StepPlan(with_prompt=True, without_prompt=True)
        number, rest = divmod(step - start + 1, self.interval)
        is_guided = not rest and number % self.guidance_interval == 0
        return StepPlan(with_prompt=not rest, without_prompt=is_guided)


MIN_START_STEPS = 2
"""A line needs two points: nothing is predicted before two steps are computed."""
MIN_STEPS = 8
"""Clips of fewer steps compute every pass: their steps are far apart, as in models distilled to a few."""

LEVELS = (
    QualityLevel(FULL, "Computes every pass."),
    QualityLevel("balanced", "Computes about 60 % of the passes.", start_share=0.2, interval=2),
    QualityLevel("draft", "Computes about 45 % of the passes.", start_share=0.2, interval=3),
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


def full_steps(level: str, steps: int, *, has_guidance: bool) -> float:
    """The work of a clip in steps that compute every pass."""
    plan = plan_steps(level, steps)
    return sum(sum(step) / 2 if has_guidance else step.with_prompt for step in plan)
