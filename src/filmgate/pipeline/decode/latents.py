"""Conversion and checks of pipeline latents before they reach a VAE."""

from functools import cache

import torch
from torch import Tensor

from filmgate.errors import DecodeError, UsageError


def as_single_clip(latents: Tensor, channels: int, *, channel_axis: int = 1) -> Tensor:
    """The latents as a batch of one clip; raises UsageError if they are not one clip for this VAE."""
    if latents.ndim == 4:
        latents = latents.unsqueeze(0)
    if latents.ndim != 5 or latents.shape[0] != 1:
        shape = tuple(latents.shape)
        raise UsageError(
            f"expected the latents of one clip, five-dimensional, got shape {shape}", option="latents"
        )
    if (found := latents.shape[channel_axis]) != channels:
        raise UsageError(
            f"the VAE needs {channels} latent channels, but the latents have {found}", option="latents"
        )
    if latents.numel() == 0:
        raise UsageError(f"the latents are empty: shape {tuple(latents.shape)}", option="latents")
    return latents


def are_finite(values: Tensor) -> Tensor:
    """Whether all values are finite, as a tensor on their device.

    Takes one pass over the values: their sum is finite only if all of them are.
    """
    total = values.sum(dtype=torch.float32)
    return total - total == 0


class FiniteCheck:
    """Checks on first use whether values are finite, in parallel with work queued after they were made."""

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._values_ready = (
            torch.cuda.current_stream(values.device).record_event() if values.is_cuda else None
        )
        self._result: bool | None = None

    def require(self) -> None:
        """Raise DecodeError if a value is NaN or infinite.

        On a GPU this neither waits for work queued after the values nor delays it.
        """
        if self._result is None:
            self._result = bool(are_finite(self._values) if self._values_ready is None else self._run())
        if not self._result:
            raise DecodeError(
                "the latents contain NaN or infinity and cannot be decoded; "
                "denoise in bfloat16 or float32 instead of float16, or lower the guidance scale"
            )

    def _run(self) -> Tensor:
        assert self._values_ready is not None
        stream = side_stream(self._values.device)
        stream.wait_event(self._values_ready)
        result = torch.empty((), dtype=torch.bool, pin_memory=True)
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            result.copy_(are_finite(self._values), non_blocking=True)
            done.record(stream)
        done.synchronize()
        return result


@cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream shared by all clips: memory allocated on a stream stays reserved for it."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
