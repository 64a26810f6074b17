"""Muon: momentum whose matrices are made orthogonal before they are applied; and its duet with AdamW, which
takes what is no matrix.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Coefficients of the quintic Newton-Schulz step (Jordan et al., 2024): they pull singular values towards one.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalize(matrices: Tensor, rounds: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices to a stack of them, roughly: singular values end near one."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """For weight matrices, and for convolutions as matrices of outputs by everything else. Equal shapes are
    worked on together. The step is scaled to the size AdamW would take.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002 - the base class asks for it
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for weights in by_shape.values():
                self._step_stack(weights, group["lr"], group["momentum"], group["weight_decay"])

    def _step_stack(self, weights: list[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        gradients = [weight.grad for weight in weights]
        buffers = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        ahead = torch.lerp(torch.stack(gradients), torch.stack(buffers), momentum)
        updates = orthogonalize(ahead.flatten(2))
        scale = 0.2 * max(updates.shape[1:]) ** 0.5
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        torch._foreach_add_(weights, list(updates.view_as(ahead).unbind(0)), alpha=-lr * scale)


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates."""

    matrices: float
    others: float
    weight_decay: float = 0.0


class Duet:
    """Muon for the matrices and AdamW for the others, led by one schedule."""

    def __init__(self, matrices: Sequence[Tensor], everything: Sequence[Tensor], rates: Rates) -> None:
        taken = {id(weight) for weight in matrices}
        others = [weight for weight in everything if id(weight) not in taken]
        adam = torch.optim.AdamW(
            others,
            lr=rates.others,
            betas=(0.9, 0.95),
            weight_decay=rates.weight_decay,
            fused=others[0].is_cuda,
        )
        muon = Muon(matrices, lr=rates.matrices, weight_decay=rates.weight_decay)
        self.players = {adam: rates.others, muon: rates.matrices}

    def zero_grad(self) -> None:
        for player in self.players:
            player.zero_grad(set_to_none=True)

    def step(self, scale: float) -> None:
        """`scale` is the schedule's: 1 at its peak."""
        for player, peak in self.players.items():
            for group in player.param_groups:
                group["lr"] = peak * scale
            player.step()

    def state_dict(self) -> list[dict[str, Any]]:
        return [player.state_dict() for player in self.players]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for player, saved in zip(self.players, state, strict=True):
            player.load_state_dict(saved)
