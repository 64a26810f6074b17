"""EasyCache (Zhou et al., 2025), to compare quality levels with: passes are reused while little changes.

A reused pass returns its input plus the difference between output and input of the last computed pass. The
change of the output since then is estimated: the change of the input, times the ratio of both changes at the
last computed pass. The estimates are added up, and at `threshold` a pass is computed again. Every decision
reads a number back from the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

WARM_UP_SHARE = 0.2  # 10 of 50 steps in the authors' code for Wan


@dataclass(slots=True)
class Branch:
    """The last computed pass with the prompt, or of the one without it."""

    given: Tensor
    output: Tensor

    def reuse(self, given: Tensor) -> Tensor:
        return given + (self.output - self.given)


class EasyCache:
    """Decides for the steps of one clip. Both passes of a guided step follow the decision of the first."""

    def __init__(self, threshold: float, steps: int, passes_per_step: int) -> None:
        self._threshold = threshold
        self._computed_steps = {*range(max(2, round(steps * WARM_UP_SHARE))), steps - 1}
        self._passes_per_step = passes_per_step
        self._asked = 0
        self._branches: dict[int, Branch] = {}
        self._rate: float | None = None  # change of the output per change of the input
        self._error = 0.0
        self._last_given: Tensor | None = None
        self._is_computed = True

    def run(self, given: Tensor, compute: Any) -> Tensor:
        step, branch = divmod(self._asked, self._passes_per_step)
        self._asked += 1
        if branch == 0:
            self._is_computed = self._decide(step, given)
            self._last_given = given
        if not self._is_computed:
            return self._branches[branch].reuse(given)
        output: Tensor = compute()
        if branch == 0 and branch in self._branches:
            last = self._branches[branch]
            self._rate = _mean(output - last.output) / _mean(given - last.given)
        self._branches[branch] = Branch(given, output)
        return output

    def _decide(self, step: int, given: Tensor) -> bool:
        if step in self._computed_steps or self._rate is None or self._last_given is None:
            self._error = 0.0
            return True
        change = _mean(given - self._last_given) / _mean(self._branches[0].output)
        self._error += self._rate * change
        if self._error < self._threshold:
            return False
        self._error = 0.0
        return True


@contextmanager
def easy_cache(network: Any, cache: EasyCache) -> Iterator[None]:
    """Run the passes of one clip through the cache."""
    forward = network.forward

    def run(*args: Any, **kwargs: Any) -> tuple[Tensor]:
        given = kwargs["hidden_states"]
        return (cache.run(given, lambda: forward(*args, **kwargs)[0]),)

    network.forward = run
    try:
        yield
    finally:
        del network.forward


def _mean(values: Tensor) -> float:
    return float(values.float().abs().mean())
