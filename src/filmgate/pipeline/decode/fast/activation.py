"""The passes between two convolutions of LTX-Video and HunyuanVideo, on frames with channels last.

cuDNN adds the bias of a convolution in a separate pass. It is left out there and added by the next pass.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS_LAST = torch.channels_last_3d
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class NormActivation:
    """A bias, an RMS norm over channels with `epsilon`, a scale and shift per channel, SiLU: those given."""

    bias: Tensor | None = None
    epsilon: float | None = None
    modulation: tuple[Tensor, Tensor] | None = None
    is_active: bool = True


@dataclass(frozen=True, slots=True)
class Border:
    """Copies of the first frame before the clip and of the last one after it, and of pixels on every side."""

    before: int = 0
    after: int = 0
    side: int = 0


NO_BORDER = Border()


def activate(
    frames: Tensor, steps: NormActivation, border: Border = NO_BORDER, out: Tensor | None = None
) -> Tensor:
    """[1, C, T, h, w] after these steps and with the border, in `out` if it is given."""
    frames = frames.contiguous(memory_format=CHANNELS_LAST)
    _, columns, length, height, width = frames.shape
    if out is None:
        length += border.before + border.after
        shape = (columns, length, height + 2 * border.side, width + 2 * border.side)
        out = empty_frames(shape, frames)
    if frames.is_cuda:
        from filmgate.pipeline.decode.fast.activation_kernels import activate_on_gpu

        activate_on_gpu(frames, steps, border, out)
    else:
        out.copy_(activate_in_torch(frames, steps, border))
    return out


def activate_in_torch(frames: Tensor, steps: NormActivation, border: Border) -> Tensor:
    """The reference implementation."""
    values = frames.float()
    if steps.bias is not None:
        values = values + _per_channel(steps.bias)
    if steps.epsilon is not None:
        values = values * torch.rsqrt((values * values).mean(1, keepdim=True) + steps.epsilon)
    if steps.modulation is not None:
        gamma, beta = steps.modulation
        values = values * _per_channel(gamma) + _per_channel(beta)
    if steps.is_active:
        values = functional.silu(values)
    side = border.side
    return functional.pad(values, (side, side, side, side, border.before, border.after), mode="replicate")


def add_to(frames: Tensor, bias: Tensor | None, other: Tensor | None = None) -> Tensor:
    """Add a bias per channel and other frames, in place."""
    if frames.is_cuda and (bias is not None or other is not None):
        from filmgate.pipeline.decode.fast.activation_kernels import add_on_gpu

        add_on_gpu(frames, bias, None if other is None else other.contiguous(memory_format=CHANNELS_LAST))
        return frames
    for one in (None if bias is None else _per_channel(bias), other):
        if one is not None:
            frames.add_(one)
    return frames


def channel_sums(frames: Tensor) -> tuple[Tensor, Tensor]:
    """For every channel, the sum and the sum of squares, in float32."""
    if frames.is_cuda:
        from filmgate.pipeline.decode.fast.activation_kernels import channel_sums_on_gpu

        return channel_sums_on_gpu(frames)
    values = frames.float()
    return values.sum((0, 2, 3, 4)), values.square().sum((0, 2, 3, 4))


def empty_frames(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    """Memory for frames [1, C, T, h, w] with channels last."""
    return torch.empty((1, *shape), device=like.device, dtype=like.dtype, memory_format=CHANNELS_LAST)


def _per_channel(values: Tensor) -> Tensor:
    return values.float().view(1, -1, 1, 1, 1)


def converted(module: M, dtype: torch.dtype) -> M:
    """A copy in this dtype with channels last. cuDNN is fastest in this layout, and copies nothing."""
    copy: Any = deepcopy(module).to(dtype)  # torch's types do not know `memory_format` here
    result: M = copy.to(memory_format=CHANNELS_LAST).requires_grad_(requires_grad=False)
    return result


def unsupported_activation(decoder: nn.Module) -> str | None:
    """Why these layers cannot be activated by `activate`; None if they can."""
    used = {type(m.nonlinearity).__name__ for m in decoder.modules() if hasattr(m, "nonlinearity")}
    return None if used <= {"SiLU"} else f"the VAE's activation is {', '.join(sorted(used))}, not SiLU"
