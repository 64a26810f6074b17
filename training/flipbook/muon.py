"""Muon: momentum whose matrices are made orthogonal before they are applied; and its duet with AdamW, which
takes what is no matrix.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Coefficients of the quintic Newton-Schulz step (Jordan et al., 2024): they pull singular values towards one.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalize(matrices: Tensor, rounds: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices to a stack of wide ones, roughly: singular values end near one.

    Rows and columns of nothing but zeros stay so, and change nothing for the others.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.to(matrices.dtype)


def find_extent(weight: Tensor) -> tuple[int, int]:
    """Rows and columns of a weight as a wide matrix; a convolution is one of outputs by everything else."""
    rows, columns = len(weight), weight[0].numel()
    return min(rows, columns), max(rows, columns)


def open_windows(stack: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """A view into each page of the stack that has the shape of its weight."""
    windows = []
    for page, weight in zip(stack, weights, strict=True):
        rows, columns = find_extent(weight)
        window = page[:rows, :columns]
        windows.append((window if len(weight) == rows else window.mT).unflatten(1, weight.shape[1:]))
    return windows


class Muon(torch.optim.Optimizer):
    """For weight matrices and convolutions, all in one stack, the smaller ones padded: a hundred kernels a
    step instead of thousands. The step is scaled to the size AdamW would take.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002 - the base class asks for it
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if "momentum" not in self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
            gradients = [weight.grad for weight in weights]
            buffers = [self.state[weight]["momentum"] for weight in weights]
            torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, buffers, group["momentum"])  # noqa: SLF001 - no public name
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            turned = self._turn(weights, ahead)
            torch._foreach_add_(weights, open_windows(turned, weights), alpha=-group["lr"])

    @staticmethod
    def _turn(weights: list[Tensor], ahead: Sequence[Tensor]) -> Tensor:
        """The stack of updates, orthogonal and scaled."""
        extents = [find_extent(weight) for weight in weights]
        rows, columns = (max(side) for side in zip(*extents, strict=True))
        stack = ahead[0].new_zeros(len(weights), rows, columns)
        torch._foreach_copy_(open_windows(stack, weights), ahead)
        scales = torch.tensor([0.2 * wide**0.5 for _, wide in extents]).to(stack.device, non_blocking=True)
        return orthogonalize(stack) * scales.view(-1, 1, 1)


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
