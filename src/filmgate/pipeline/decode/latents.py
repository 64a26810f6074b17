"""From a pipeline's latents to a VAE's: shapes, means and deviations."""

from collections.abc import Sequence
from functools import cache

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
    by_channel = (1, latents.shape[1], 1, 1, 1)
    shift = torch.tensor(mean, dtype=latents.dtype).view(by_channel).to(latents.device)
    inverse = (1.0 / torch.tensor(std, dtype=latents.dtype)).view(by_channel).to(latents.device)
    return latents / inverse + shift


def are_finite(values: Tensor) -> Tensor:
    """Whether all values are numbers, as a tensor where they are. One pass: a sum is a number if all are."""
    total = values.sum(dtype=torch.float32)
    return total - total == 0


class Verdict:
    """Whether values are numbers, found out when first asked, beside what is queued by then."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._are_there = torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None
        self._is_good: bool | None = None

    def is_good(self) -> bool:
        """The answer. On a GPU it neither waits for what is queued behind the values nor holds it up."""
        if self._is_good is None:
            self._is_good = bool(are_finite(self._values) if self._are_there is None else self._ask())
        return self._is_good

    def _ask(self) -> Tensor:
        assert self._are_there is not None
        stream = side_stream(self._values.device)
        stream.wait_event(self._are_there)
        answer = torch.empty((), dtype=torch.bool, pin_memory=True)
        answered = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            answer.copy_(are_finite(self._values), non_blocking=True)
            answered.record(stream)
        answered.synchronize()
        return answer


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all clips: a stream keeps the memory it was once given."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def refuse_unless_finite(verdict: Verdict) -> None:
    """Raise DecodeError if the latents were not numbers."""
    if not verdict.is_good():
        raise DecodeError(
            "the latents hold NaN or infinity, so there is no picture in them; "
            "denoise in bfloat16 or float32 instead of float16, or lower the guidance scale"
        )
