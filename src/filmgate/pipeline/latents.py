"""From a pipeline's latents to a VAE's: shapes, means and deviations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from filmgate.errors import DecodeError, UsageError


def single(latents: Tensor, channels: int, *, channel_axis: int = 1) -> Tensor:
    """The latents as a batch of exactly one clip, with as many channels as the VAE reads."""
    if latents.ndim == 4:
        latents = latents.unsqueeze(0)
    if latents.ndim != 5 or latents.shape[0] != 1:
        shape = tuple(latents.shape)
        raise UsageError(
            f"expected the latents of one clip, five-dimensional, got shape {shape}", option="latents"
        )
    if (found := latents.shape[channel_axis]) != channels:
        raise UsageError(f"the VAE has {channels} latent channels, the latents {found}", option="latents")
    if latents.numel() == 0:
        raise UsageError(f"the latents hold no frame: shape {tuple(latents.shape)}", option="latents")
    return latents


def shift_and_scale(latents: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """latents * std + mean per channel, written as diffusers' Wan pipeline writes it (same rounding)."""
    channels = latents.shape[1]
    shift = torch.tensor(mean).view(1, channels, 1, 1, 1).to(latents.device, latents.dtype)
    inverse = 1.0 / torch.tensor(std).view(1, channels, 1, 1, 1).to(latents.device, latents.dtype)
    return latents / inverse + shift


def are_finite(values: Tensor) -> Tensor:
    """Whether all values are numbers, as a tensor where they are. One pass: a sum is a number if all are."""
    total = values.sum(dtype=torch.float32)
    return total - total == 0


class Verdict:
    """Whether values are numbers, on its way to the host without holding up what is queued behind it."""

    def __init__(self, values: Tensor) -> None:
        self._answer = torch.empty((), dtype=torch.bool, pin_memory=values.is_cuda)
        self._answer.copy_(are_finite(values), non_blocking=True)
        self._event = torch.cuda.Event(blocking=True) if values.is_cuda else None  # type: ignore[no-untyped-call]
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(values.device))

    def is_good(self) -> bool:
        """The answer; waits until the device has come to it."""
        if self._event is not None:
            self._event.synchronize()
        return bool(self._answer)


def refuse_unless_finite(verdict: Verdict) -> None:
    """Raise DecodeError if the latents were not numbers."""
    if not verdict.is_good():
        raise DecodeError(
            "the latents hold NaN or infinity, so there is no picture in them; "
            "denoise in bfloat16 or float32 instead of float16, or lower the guidance scale"
        )
