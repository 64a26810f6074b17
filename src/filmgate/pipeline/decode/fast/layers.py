"""What the networks of Wan and CogVideoX share: causal caches, and layers with converted weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, linear

Module = Any
"""A layer of a diffusers decoder."""

Caches = list[Tensor | None]


class CacheCursor:
    """Hands out the causal caches of one clip in the order of the layers; one cursor per chunk."""

    def __init__(self, caches: Caches) -> None:
        self.is_first = not caches  # the first chunk of the clip
        self._caches = caches
        self._at = 0

    def next(self, shape: tuple[int, ...], like: Tensor, *, may_be_uninitialised: bool = False) -> Tensor:
        """The cache of the next layer. A new one is zero, or uninitialised if the layer writes it first."""
        if self._at == len(self._caches):
            self._caches.append(None)
        if (cache := self._caches[self._at]) is None:
            cache = like.new_empty(shape) if may_be_uninitialised else like.new_zeros(shape)
            self._caches[self._at] = cache
        self._at += 1
        return cache

    def skip(self) -> None:
        """Leave the cache of the next layer unchanged."""
        if self._at == len(self._caches):
            self._caches.append(None)
        self._at += 1


def convolve(frames: Tensor, weight: Tensor, padding: int) -> Tensor:
    """A spatial convolution of frames [n, height, width, channels], with the result in the same layout."""
    return conv2d(frames.permute(0, 3, 1, 2), weight, padding=padding).permute(0, 2, 3, 1).contiguous()


def as_phases(weight: Tensor) -> Tensor:
    """Weights [out, in, 3, 3] for an upsampled picture as [4 * out, in, 2, 2] for the picture itself."""
    first, middle, last = weight.unbind(2)
    rows = (torch.stack([first, middle + last], 2), torch.stack([first + middle, last], 2))
    phases = []
    for row in rows:
        first, middle, last = row.unbind(3)
        phases.append(torch.stack([first, middle + last], 3))
        phases.append(torch.stack([first + middle, last], 3))
    return torch.cat(phases)


def taps_as_channels(conv: Module, dtype: torch.dtype) -> Tensor:
    """The taps of a causal convolution as channels of one spatial convolution, padded to a multiple of 8.

    cuDNN is faster with channels in multiples of 8.
    """
    stacked = torch.cat(conv.weight.detach().float().unbind(2))
    spare = -len(stacked) % 8
    padded = torch.cat([stacked, stacked.new_zeros(spare, *stacked.shape[1:])])
    return padded.to(dtype).contiguous(memory_format=torch.channels_last)


def as_linear(conv: Module, dtype: torch.dtype, scales: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """A 1 x 1 convolution as a linear layer over the channels; `scales` multiply its outputs."""
    matrix, bias = conv.weight.detach().flatten(1), conv.bias.detach()
    if scales is not None:
        matrix, bias = matrix.float() * scales[:, None], bias.float() * scales
    matrix, bias = matrix.to(dtype), bias.to(dtype)
    return lambda frames: linear(frames, matrix, bias)
