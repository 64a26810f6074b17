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


def check_finite_synchronising(latents: Tensor) -> None:
    """Refuse latents with NaN or infinity before anything is decoded. Waits for the GPU, once per clip."""
    if not bool(are_finite(latents)):
        raise DecodeError(
            "the latents hold NaN or infinity, so there is no picture in them; "
            "denoise in bfloat16 or float32 instead of float16, or lower the guidance scale"
        )
