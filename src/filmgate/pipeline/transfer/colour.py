"""Converts decoded frames to bytes: YUV for the encoder, RGB for Python callers.

YUV is BT.709, limited range. In 4:2:0, chroma is averaged over 2 x 2 pixels (centre-sited), in 4:2:2 over two
pixels of a row. Values of 10 bits take two bytes each.
"""

import importlib.util
from functools import cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from filmgate.errors import UsageError
from filmgate.pipeline.decode.base import are_finite
from filmgate.telemetry.logs import Log

log = Log("transfer")

# Luma weights of BT.709; chroma is (B - Y) / 1.8556 and (R - Y) / 1.5748, each in [-0.5, 0.5].
RED, GREEN, BLUE = 0.2126, 0.7152, 0.0722
TO_LUMA = (RED, GREEN, BLUE)
TO_BLUE_DIFFERENCE = tuple(weight / 1.8556 for weight in (-RED, -GREEN, 1 - BLUE))
TO_RED_DIFFERENCE = tuple(weight / 1.5748 for weight in (1 - RED, -GREEN, -BLUE))
# Map [-1, 1] to the limited range: luma 16 to 235, chroma 16 to 240.
LUMA_SCALE, LUMA_SHIFT = 109.5, 125.5
CHROMA_SCALE, CHROMA_SHIFT = 112.0, 128.0


class Layout(Protocol):
    """The memory layout of a converted frame."""

    def frame_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return the uint8 shape of one frame. Raises UsageError for a size that the layout cannot hold."""
        ...

    def convert(self, frames: Tensor, out: Tensor, is_finite: Tensor | None = None) -> None:
        """Convert frames [3, n, height, width] in [-1, 1] into `out` [n, *frame_shape] on the same device.

        `is_finite`, one byte on that device, is set to 0 if the frames contain NaN or infinity.
        """
        ...


class Yuv420:
    """Planar YUV 4:2:0, as `yuv420p` in FFmpeg: luma rows, then the two chroma planes."""

    ffmpeg_name: ClassVar[str] = "yuv420p"

    def frame_shape(self, height: int, width: int) -> tuple[int, ...]:
        if height % 2 or width % 2:
            raise UsageError(
                f"{width}x{height} is not even; YUV 4:2:0 needs an even width and height", option="--size"
            )
        return (height * 3 // 2, width)

    def convert(self, frames: Tensor, out: Tensor, is_finite: Tensor | None = None) -> None:
        if frames.is_cuda and can_launch(frames.device):
            from filmgate.pipeline.transfer.colour_kernel import convert_on_gpu

            convert_on_gpu(frames, out, is_finite)
        else:
            self.convert_in_torch(frames, out, is_finite)

    @staticmethod
    def convert_in_torch(frames: Tensor, out: Tensor, is_finite: Tensor | None = None) -> None:
        """The reference implementation."""
        if is_finite is not None:
            is_finite *= are_finite(frames)
        _, count, height, width = frames.shape
        frames = frames.float().clamp(-1, 1)
        luma = _weighted(frames, TO_LUMA).mul_(LUMA_SCALE).add_(LUMA_SHIFT)
        out[:, :height] = _to_bytes(luma)
        halved = avg_pool2d(frames, 2)
        chroma = out[:, height:].view(count, 2, height // 2, width // 2)
        for plane, weights in enumerate((TO_BLUE_DIFFERENCE, TO_RED_DIFFERENCE)):
            chroma[:, plane] = _to_bytes(_weighted(halved, weights).mul_(CHROMA_SCALE).add_(CHROMA_SHIFT))


class PlanarYuv:
    """Planar YUV with more chroma rows or more bits than Yuv420, in torch operators on every device."""

    def __init__(self, *, has_all_rows: bool, bits: int) -> None:
        self._row_step = 1 if has_all_rows else 2  # pixel rows per row of chroma
        self._bits = bits
        self.ffmpeg_name = f"yuv42{2 if has_all_rows else 0}p{'10le' if bits > 8 else ''}"

    def frame_shape(self, height: int, width: int) -> tuple[int, ...]:
        if height % self._row_step or width % 2:
            raise UsageError(f"{width}x{height} is not even; YUV needs an even size", option="--size")
        return (height + height // self._row_step, width * self._value_bytes)

    def convert(self, frames: Tensor, out: Tensor, is_finite: Tensor | None = None) -> None:
        if is_finite is not None:
            is_finite *= are_finite(frames)
        _, count, height, width = frames.shape
        values = out if self._value_bytes == 1 else out.view(torch.int16)
        frames = frames.float().clamp(-1, 1)
        scale = 2 ** (self._bits - 8)
        values[:, :height] = _weighted(frames, TO_LUMA).mul_(LUMA_SCALE).add_(LUMA_SHIFT).mul_(scale).round_()
        halved = avg_pool2d(frames, (self._row_step, 2))
        chroma = values[:, height:].view(count, 2, height // self._row_step, width // 2)
        for plane, weights in enumerate((TO_BLUE_DIFFERENCE, TO_RED_DIFFERENCE)):
            signed = _weighted(halved, weights)
            chroma[:, plane] = signed.mul_(CHROMA_SCALE).add_(CHROMA_SHIFT).mul_(scale).round_()

    @property
    def _value_bytes(self) -> int:
        return 1 if self._bits == 8 else 2


YuvLayout = Yuv420 | PlanarYuv


def yuv_layout(pixel_format: str) -> YuvLayout:
    """The layout of `pipeline.pixel_format`."""
    if pixel_format == Yuv420.ffmpeg_name:
        return Yuv420()
    return PlanarYuv(has_all_rows="422" in pixel_format, bits=10 if pixel_format.endswith("10") else 8)


@cache
def can_launch(device: torch.device) -> bool:
    """Return whether the Triton kernel can be built: Triton or its C compiler may be missing. Cached."""
    if importlib.util.find_spec("triton") is None:
        return False
    from filmgate.pipeline.transfer import colour_kernel

    frames = torch.zeros(3, 1, 2, 2, device=device)
    try:
        colour_kernel.convert_on_gpu(frames, torch.empty(1, 3, 2, device=device, dtype=torch.uint8))
    except torch.OutOfMemoryError:
        raise
    except Exception as exc:  # noqa: BLE001 - torch works for any reason that Triton does not
        log.warning("could not build the colour kernel with Triton; using torch operators", error=exc)
        return False
    return True


class Rgb24:
    """Interleaved RGB, as numpy and PIL expect."""

    def frame_shape(self, height: int, width: int) -> tuple[int, ...]:
        return (height, width, 3)

    def convert(self, frames: Tensor, out: Tensor, is_finite: Tensor | None = None) -> None:
        if is_finite is not None:
            is_finite *= are_finite(frames)
        scaled = frames.float().clamp(-1, 1).mul_(127.5).add_(127.5).round_()
        out.copy_(scaled.permute(1, 2, 3, 0))


def _weighted(frames: Tensor, weights: tuple[float, ...]) -> Tensor:
    red, green, blue = weights
    return (frames[0] * red).add_(frames[1], alpha=green).add_(frames[2], alpha=blue)


def _to_bytes(values: Tensor) -> Tensor:
    return values.round_().to(torch.uint8)
