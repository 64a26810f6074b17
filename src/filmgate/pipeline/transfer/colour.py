"""From decoded frames to bytes: YUV 4:2:0 for the encoder, RGB for Python callers.

YUV is BT.709, limited range, chroma averaged over 2 x 2 pixels (centre-sited), 1.5 bytes a pixel.
"""

import importlib.util
import logging
from functools import cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from filmgate.errors import UsageError
from filmgate.pipeline.decode.latents import are_finite

log = logging.getLogger(__name__)

# Luma weights of BT.709; chroma is (B - Y) / 1.8556 and (R - Y) / 1.5748, each in [-0.5, 0.5].
RED, GREEN, BLUE = 0.2126, 0.7152, 0.0722
TO_LUMA = (RED, GREEN, BLUE)
TO_BLUE_DIFFERENCE = tuple(weight / 1.8556 for weight in (-RED, -GREEN, 1 - BLUE))
TO_RED_DIFFERENCE = tuple(weight / 1.5748 for weight in (1 - RED, -GREEN, -BLUE))
# From [-1, 1] to the limited range: luma 16 to 235, chroma 16 to 240.
LUMA_SCALE, LUMA_SHIFT = 109.5, 125.5
CHROMA_SCALE, CHROMA_SHIFT = 112.0, 128.0


class Layout(Protocol):
    """How a frame lies in memory once it leaves the decoder."""

    def frame_shape(self, height: int, width: int) -> tuple[int, ...]:
        """The uint8 shape of one frame; raises UsageError for a size the layout cannot hold."""
        ...

    def convert(self, frames: Tensor, out: Tensor, sound: Tensor | None = None) -> None:
        """Write frames [3, n, height, width] in [-1, 1] into `out` [n, *frame_shape], on their own device.

        `sound`, one byte there, becomes 0 if they are not all numbers.
        """
        ...


class Yuv420:
    """Planar YUV 4:2:0, as `yuv420p` in FFmpeg: luma rows, then the two chroma planes."""

    ffmpeg_name: ClassVar[str] = "yuv420p"

    def frame_shape(self, height: int, width: int) -> tuple[int, ...]:
        if height % 2 or width % 2:
            raise UsageError(
                f"{width}x{height} is odd; YUV 4:2:0 needs an even width and height", option="--size"
            )
        return (height * 3 // 2, width)

    def convert(self, frames: Tensor, out: Tensor, sound: Tensor | None = None) -> None:
        if not frames.is_cuda:
            self.convert_in_torch(frames, out, sound)
            return
        with torch.cuda.device(frames.device):  # Triton launches where the thread is
            if can_launch(frames.device):
                from filmgate.pipeline.transfer.colour_kernel import convert_on_gpu

                convert_on_gpu(frames, out, sound)
            else:
                self.convert_in_torch(frames, out, sound)

    @staticmethod
    def convert_in_torch(frames: Tensor, out: Tensor, sound: Tensor | None = None) -> None:
        """The reference, one step at a time."""
        if sound is not None:
            sound *= are_finite(frames)
        _, count, height, width = frames.shape
        frames = frames.float().clamp(-1, 1)
        luma = _weighted(frames, TO_LUMA).mul_(LUMA_SCALE).add_(LUMA_SHIFT)
        out[:, :height] = _to_bytes(luma)
        halved = avg_pool2d(frames, 2)
        chroma = out[:, height:].view(count, 2, height // 2, width // 2)
        for plane, weights in enumerate((TO_BLUE_DIFFERENCE, TO_RED_DIFFERENCE)):
            chroma[:, plane] = _to_bytes(_weighted(halved, weights).mul_(CHROMA_SCALE).add_(CHROMA_SHIFT))


@cache
def can_launch(device: torch.device) -> bool:
    """Whether our kernel can be built here: Triton may be missing, or the C compiler it needs. Tried once."""
    if importlib.util.find_spec("triton") is None:
        return False
    from filmgate.pipeline.transfer import colour_kernel

    frames = torch.zeros(3, 1, 2, 2, device=device)
    try:
        colour_kernel.convert_on_gpu(frames, torch.empty(1, 3, 2, device=device, dtype=torch.uint8))
    except torch.OutOfMemoryError:
        raise
    except Exception as exc:  # noqa: BLE001 - whatever keeps it from being built, torch's operators need none
        log.warning("colours: Triton cannot build its kernel here, torch's operators take over: %s", exc)
        return False
    return True


class Rgb24:
    """Interleaved RGB, as numpy and PIL expect it."""

    def frame_shape(self, height: int, width: int) -> tuple[int, ...]:
        return (height, width, 3)

    def convert(self, frames: Tensor, out: Tensor, sound: Tensor | None = None) -> None:
        if sound is not None:
            sound *= are_finite(frames)
        scaled = frames.float().clamp(-1, 1).mul_(127.5).add_(127.5).round_()
        out.copy_(scaled.permute(1, 2, 3, 0))


def _weighted(frames: Tensor, weights: tuple[float, ...]) -> Tensor:
    red, green, blue = weights
    return (frames[0] * red).add_(frames[1], alpha=green).add_(frames[2], alpha=blue)


def _to_bytes(values: Tensor) -> Tensor:
    return values.round_().to(torch.uint8)
