"""Muon: momentum whose matrices are made orthogonal before they are applied. Equal shapes are worked on
together.
"""

from collections import defaultdict
from collections.abc import Iterable

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
    """For weight matrices only. The step is scaled to the size AdamW would take, so both share a learning
    rate.
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
        updates = orthogonalize(ahead).unbind(0)
        scale = 0.2 * max(weights[0].shape) ** 0.5
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        torch._foreach_add_(weights, updates, alpha=-lr * scale)
