"""Muon, an optimiser that orthogonalizes the momentum of matrices, combined with AdamW for other weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Coefficients of the quintic Newton-Schulz step (Jordan et al., 2024): it moves singular values towards one.
A, B, C = 3.4445, -4.7750, 2.0315


def orthogonalize(matrices: Tensor, rounds: int = 5) -> Tensor:
    """Approximate the nearest semi-orthogonal matrices to a stack of wide ones: singular values near one.

    Rows and columns of zeros stay zero and do not affect the others.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.to(matrices.dtype)


def matrix_shape(weight: Tensor) -> tuple[int, int]:
    """The rows and columns of a weight as a wide matrix. A convolution has its outputs as rows."""
    rows, columns = len(weight), weight[0].numel()
    return min(rows, columns), max(rows, columns)


def views_like(stack: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """A view of each matrix of the stack in the shape of its weight."""
    views = []
    for page, weight in zip(stack, weights, strict=True):
        rows, columns = matrix_shape(weight)
        view = page[:rows, :columns]
        views.append((view if len(weight) == rows else view.mT).unflatten(1, weight.shape[1:]))
    return views


class Muon(torch.optim.Optimizer):
    """For matrices and convolutions, padded to one stack: a hundred kernels per step instead of thousands.

    Updates are scaled to the size of AdamW's.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002 - the signature of the base class
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
            updates = self._orthogonal_updates(weights, ahead)
            torch._foreach_add_(weights, views_like(updates, weights), alpha=-group["lr"])

    @staticmethod
    def _orthogonal_updates(weights: list[Tensor], ahead: Sequence[Tensor]) -> Tensor:
        """The stack of orthogonalized, scaled updates."""
        shapes = [matrix_shape(weight) for weight in weights]
        rows, columns = (max(side) for side in zip(*shapes, strict=True))
        stack = ahead[0].new_zeros(len(weights), rows, columns)
        torch._foreach_copy_(views_like(stack, weights), ahead)
        scales = torch.tensor([0.2 * wide**0.5 for _, wide in shapes]).to(stack.device, non_blocking=True)
        return orthogonalize(stack) * scales.view(-1, 1, 1)


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates."""

    matrices: float
    others: float
    weight_decay: float = 0.0


class MuonWithAdamW:
    """Muon for the matrices and AdamW for the other weights, with one schedule."""

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
        self.optimizers = {adam: rates.others, muon: rates.matrices}

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def step(self, scale: float) -> None:
        """`scale` is the learning rate relative to its peak."""
        for optimizer, peak in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = peak * scale
            optimizer.step()

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        for optimizer, saved in zip(self.optimizers, state, strict=True):
            optimizer.load_state_dict(saved)
