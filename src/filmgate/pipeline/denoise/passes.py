"""Runs the passes that a quality level computes, and predicts the others from them.

A pass through the denoiser returns the direction in which the latents move. That direction changes
slowly and smoothly, so a pass can be extrapolated from the two that were computed before it. Which passes are
computed is planned in `filmgate.models.quality`: nothing is read back from the device to decide.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from filmgate.models.quality import StepPlan

Network = Any
"""A diffusers model; diffusers ships no types."""


SLOPE_SHARE = 0.75
"""The share of the slope that a prediction follows: all of it would overshoot where the direction turns."""


class PassHistory:
    """The last two computed values of one kind, by noise level."""

    def __init__(self) -> None:
        self._values: list[tuple[float, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, sigma: float, value: Tensor) -> None:
        self._values = [*self._values[-1:], (sigma, value)]

    def predict(self, sigma: float) -> Tensor:
        """The value at another noise level, near a line through the last two."""
        last_sigma, last = self._values[-1]
        before_sigma, before = self._values[0]
        if before_sigma == last_sigma:
            return last
        weight = SLOPE_SHARE * (sigma - last_sigma) / (last_sigma - before_sigma)
        return torch.lerp(before.float(), last.float(), 1 + weight).to(last.dtype)


class NetworkPasses:
    """The passes of one network: with the prompt, and what guidance adds to them."""

    def __init__(self) -> None:
        self._with_prompt, self._difference = PassHistory(), PassHistory()
        self._last: Tensor | None = None

    def with_prompt(self, sigma: float, compute: Callable[[], Tensor], *, is_computed: bool) -> Tensor:
        if is_computed or not self._with_prompt:
            self._last = compute()
            self._with_prompt.add(sigma, self._last)
        else:
            self._last = self._with_prompt.predict(sigma)
        return self._last

    def without_prompt(self, sigma: float, compute: Callable[[], Tensor], *, is_computed: bool) -> Tensor:
        """The second pass of a step. Its difference from the first is smaller and smoother than the pass."""
        assert self._last is not None, "the pass with the prompt comes first"
        if is_computed or not self._difference:
            output = compute()
            self._difference.add(sigma, self._last - output)
            return output
        return self._last - self._difference.predict(sigma)


class PlannedPasses:
    """The passes of one clip, in the order in which the pipeline requests them.

    With guidance, a step has two: with the prompt and without it. The first passes of a network are computed
    even if the plan says otherwise.
    """

    def __init__(self, plan: Sequence[StepPlan], scheduler: Any, passes_per_step: int) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._passes_per_step = passes_per_step
        self._asked = 0
        self._networks: dict[int, NetworkPasses] = {}
        self._sigmas: list[float] = []

    def start(self) -> None:
        """Read the noise levels, which some schedulers keep on the device: a pass must not wait for it.

        Called once the schedule is set; otherwise the first pass does it.
        """
        self._sigmas = self._scheduler.sigmas.tolist()

    def run(self, network: Network, compute: Callable[[], Tensor]) -> Tensor:
        """Compute or predict the next pass."""
        step, branch = divmod(self._asked, self._passes_per_step)
        self._asked += 1
        if not self._sigmas:
            self.start()
        sigma = self._sigmas[step]
        passes = self._networks.setdefault(id(network), NetworkPasses())
        if branch == 0:
            return passes.with_prompt(sigma, compute, is_computed=self._plan[step].with_prompt)
        return passes.without_prompt(sigma, compute, is_computed=self._plan[step].without_prompt)


@contextmanager
def planned_passes(networks: Sequence[Network], passes: PlannedPasses) -> Iterator[None]:
    """Let the networks run these passes until the block ends, around whatever else wraps their forward."""
    replaced = [(network, network.__dict__.get("forward")) for network in networks]
    for network in networks:
        network.forward = _planned(network, network.forward, passes)
    try:
        yield
    finally:
        for network, forward in replaced:
            if forward is None:
                del network.forward
            else:
                network.forward = forward


def _planned(network: Network, forward: Any, passes: PlannedPasses) -> Any:
    def run(*args: Any, **kwargs: Any) -> tuple[Tensor]:
        return (passes.run(network, lambda: forward(*args, **kwargs)[0]),)

    return run
