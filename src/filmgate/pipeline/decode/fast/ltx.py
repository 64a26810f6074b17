"""The fast decoder of LTX-Video: its own layers in float16, channels last, with fused norms."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import conv3d

from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast.activation import CHANNELS_LAST, Steps, activate, add_to, empty_frames
from filmgate.pipeline.decode.fast.converted import unsupported_activation
from filmgate.pipeline.decode.ltx import CHUNK_FRAMES, LtxDecoder
from filmgate.pipeline.decode.ltx_layers import TIME, Activate, Modulation, Operations, stream_decoder


class FastLtx(LtxDecoder):
    """LTX-Video, streamed as before, through the converted layers."""

    def __init__(self, vae: Vae, decoder: Any) -> None:
        super().__init__(vae)
        self._decoder = decoder

    def _stream(self, latents: Tensor) -> Iterator[Tensor]:
        dtype = self._decoder.conv_in.conv.weight.dtype
        latents = latents.to(dtype).contiguous(memory_format=CHANNELS_LAST)
        return stream_decoder(self._decoder, latents, self._timestep(latents), CHUNK_FRAMES, FastOperations())


def unsupported_ltx(vae: Vae) -> str | None:
    norms = [m for m in vae.decoder.modules() if type(m).__name__ == "RMSNorm"]
    if any(norm.weight is not None for norm in norms):
        return "the VAE's norms have weights"
    return unsupported_activation(vae.decoder)


class FastOperations(Operations):
    """With the kernels. A convolution leaves out its bias, and its input is written where it is read."""

    def activation(
        self, norm: Any, modulation: Modulation | None, _activation: Any, bias: Tensor | None
    ) -> Activate:
        if modulation is not None:
            scale, shift = modulation
            modulation = (1 + scale.float()).flatten(), shift.float().flatten()
        steps = Steps(bias, norm.eps, modulation)
        return lambda frames, out: activate(frames, steps, out=out)

    def prepare(
        self, frames: Tensor, activate: Activate | None, held: Tensor | None, repeats: tuple[int, int]
    ) -> Tensor:
        first, last = repeats
        start = first if held is None else held.shape[TIME]
        _, channels, count, height, width = frames.shape
        joined = empty_frames((channels, start + count + last, height, width), frames)
        body = joined[:, :, start : start + count]
        if activate is None:
            body.copy_(frames)
        else:
            activate(frames, body)
        joined[:, :, :start] = body[:, :, :1] if held is None else held
        joined[:, :, start + count :] = body[:, :, -1:]
        return joined

    def convolve(self, layer: Any, frames: Tensor) -> Tensor:
        return conv3d(frames, layer.weight, None, layer.stride, layer.padding)

    def bias_left_out(self, layer: Any) -> Tensor | None:
        bias: Tensor | None = layer.bias
        return bias

    def add(self, frames: Tensor, bias: Tensor | None, skipped: Sequence[Tensor] = ()) -> Tensor:
        if not skipped:
            return add_to(frames, bias)
        start = 0
        for part in skipped:
            end = start + part.shape[TIME]
            add_to(frames[:, :, start:end], bias, part)
            start = end
        return frames

    def unfold(self, frames: Tensor, stride: tuple[int, int, int]) -> Tensor:
        in_time, down, across = stride
        _, _, count, height, width = frames.shape
        parts = frames.permute(0, 2, 3, 4, 1).reshape(1, count, height, width, -1, in_time, down, across)
        moved = parts.permute(0, 1, 5, 2, 6, 3, 7, 4)
        return moved.reshape(1, count * in_time, height * down, width * across, -1).permute(0, 4, 1, 2, 3)
