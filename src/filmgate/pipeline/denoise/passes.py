"""Runs the passes that a quality level computes, and predicts the others from them.

A pass through the denoiser answers with the direction in which the latents move. That direction changes
slowly and smoothly, so a pass between two computed ones can be extrapolated from the two before it. Which
passes are computed is planned in `filmgate.models.quality`: nothing is read back from the device to decide.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from filmgate.models.quality import StepPlan

Network = Any
"""A diffusers model; diffusers ships no types."""


class PassHistory:
    """The last two computed answers of one network to one prompt, by noise level."""

    def __init__(self) -> None:
        self._answers: list[tuple[float, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._answers)

    def add(self, sigma: float, answer: Tensor) -> None:
        self._answers = [*self._answers[-1:], (sigma, answer)]

    def predict(self, sigma: float) -> Tensor:
        """The answer at another noise level, on a line through the last two."""
        last_sigma, last = self._answers[-1]
        before_sigma, before = self._answers[0]
        if before_sigma == last_sigma:
            return last
        weight = (sigma - before_sigma) / (last_sigma - before_sigma)
        return torch.lerp(before.float(), last.float(), weight).to(last.dtype)


class PlannedPasses:
    """The passes of one clip, in the order in which the pipeline asks for them.

    With guidance, a step has two: with the prompt and without it.
    """

    def __init__(self, plan: Sequence[StepPlan], scheduler: Any, passes_per_step: int) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._passes_per_step = passes_per_step
        self._asked = 0
        self._histories: dict[tuple[int, int], PassHistory] = {}

    def run(self, forward: Any, network: Network, *args: Any, **kwargs: Any) -> tuple[Tensor]:
        """Compute or predict the next pass. A network that has computed nothing yet computes."""
        step, branch = divmod(self._asked, self._passes_per_step)
        self._asked += 1
        sigma, planned = float(self._scheduler.sigmas[step]), self._plan[step]  # on the host: no waiting
        history = self._histories.setdefault((id(network), branch), PassHistory())
        if history and not planned.computes(branch):
            return (history.predict(sigma),)
        answer: Tensor = forward(*args, **kwargs)[0]
        history.add(sigma, answer)
        return (answer,)


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
    return lambda *args, **kwargs: passes.run(forward, network, *args, **kwargs)
