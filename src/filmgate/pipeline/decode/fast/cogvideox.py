"""CogVideoX's decoder, layer by layer, on the fast path.

Its norms cover a whole chunk of up to nine frames, so all frames of a chunk pass one layer before the next
layer starts. They pass in groups: the first frame of a clip alone if the number of frames is odd, then groups
of two or four, the numbers that the Winograd transforms take.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import linear

from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast.group_passes import (
    CausalCache,
    GroupNorm,
    Modulation,
    normalise,
    scale_and_shift,
    to_frames_and_sums,
)
from filmgate.pipeline.decode.fast.layers import (
    CacheCursor,
    Module,
    as_linear,
    as_phases,
    convolve,
    taps_as_channels,
)
from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    MAX_FRAMES,
    TAPS,
    ConvOutput,
    InputLayout,
    OutputLayout,
    add_taps,
)
from filmgate.pipeline.decode.fast.winograd import TRANSFORMS

LATENTS_PER_CHUNK = 2
ACTIVATIONS = ("silu", "swish")


@dataclass(frozen=True, slots=True)
class ChunkContext:
    """What every layer reads besides frames: the latents [n, h, w, c] of the chunk and the clip's caches."""

    latents: Tensor
    caches: CacheCursor

    def latent_range(self, at: int, count: int, frames: int) -> slice:
        """The latent frames of `count` frames from frame `at` on, in a chunk of `frames` frames."""
        odd = frames % 2
        each = (frames - odd) // max(len(self.latents) - odd, 1)
        first, last = (n if n < odd else odd + (n - odd) // each for n in (at, at + count - 1))
        return slice(first, last + 1)


@dataclass(slots=True)
class FrameGroups:
    """The frames of a chunk in groups, with the partial sums of each group.

    Code that takes a group out of the list may overwrite its tensor.
    """

    groups: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)

    def add(self, frames_and_sums: tuple[Tensor, Tensor]) -> None:
        frames, sums = frames_and_sums
        self.groups.append(frames)
        self.sums.append(sums)

    def copy(self) -> "FrameGroups":
        """Other lists of the same tensors."""
        return FrameGroups(list(self.groups), list(self.sums))

    def pop_all(self) -> Iterator[Tensor]:
        """Each group in turn, removed from the list so its memory can be freed."""
        while self.groups:
            yield self.groups.pop(0)


class SpatialNorm:
    """CogVideoXSpatialNorm3D. Its two 1 x 1 convolutions of the latents are one matrix product."""

    def __init__(self, norm: Module, dtype: torch.dtype) -> None:
        inner = norm.norm_layer
        self.groups: int = inner.num_groups
        self._norm = GroupNorm(
            inner.weight.detach().float(), inner.bias.detach().float(), inner.num_groups, inner.eps
        )
        both = norm.conv_y.conv, norm.conv_b.conv
        self._matrix = torch.cat([conv.weight.detach().flatten(1) for conv in both]).to(dtype)
        self._bias = torch.cat([conv.bias.detach() for conv in both]).to(dtype)

    def __call__(self, chunk: FrameGroups, context: ChunkContext) -> list[Modulation]:
        """The modulation of each group of frames."""
        frames = sum(len(group) for group in chunk.groups)
        count = frames * chunk.groups[0][0].numel() // self.groups
        affine = scale_and_shift(chunk.sums, self._norm, count)
        y_and_b = linear(context.latents, self._matrix, self._bias)
        modulations, at = [], 0
        for group in chunk.groups:
            latent_range = context.latent_range(at, len(group), frames)
            modulations.append(Modulation(affine, y_and_b[latent_range]))
            at += len(group)
        return modulations


class Convolution:
    """A 3 x 3 x 3 causal convolution: by Winograd over two or four frames, one tap for a single first frame.

    Copies of the first frame take the place of the frames before it. All three taps read the same picture, so
    their weights are summed in advance.
    """

    def __init__(self, conv: Module, frames: int, dtype: torch.dtype) -> None:
        taps = conv.weight.detach().float()
        transform = taps.new_tensor(TRANSFORMS[frames].filter_transform)
        transformed = torch.einsum("pt,oithw->poihw", transform, taps)
        self._weights = [_channels_last(weight, dtype) for weight in transformed]
        self._single_frame_weight = _channels_last(taps.sum(2), dtype)
        self._bias = conv.bias.detach().float()

    def __call__(self, inputs: list[Tensor]) -> ConvOutput:
        """Convolve the inputs and remove each from the list once it has been read, to free its memory."""
        if len(inputs) == 1:
            single = convolve(inputs.pop(), self._single_frame_weight, padding=1)
            return ConvOutput(OutputLayout.FRAMES, (single,), self._bias)
        maps = tuple(convolve(inputs.pop(0), weight, padding=1) for weight in self._weights)
        return ConvOutput(OutputLayout.POINTS, maps, self._bias)


def _channels_last(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype).contiguous(memory_format=torch.channels_last)


class NormAndConvolution:
    """Norm, SiLU and convolution: one half of a residual block."""

    def __init__(self, norm: Module, conv: Module, frames: int, dtype: torch.dtype) -> None:
        self._norm = SpatialNorm(norm, dtype)
        self._conv = Convolution(conv.conv, frames, dtype)

    def __call__(
        self, chunk: FrameGroups, context: ChunkContext, residual: Iterator[Tensor] | None = None
    ) -> FrameGroups:
        first, caches = chunk.groups[0], context.caches
        cached = caches.next((CACHED_FRAMES, *first.shape[1:]), first, may_be_uninitialised=caches.is_first)
        del first
        done = FrameGroups()
        for modulation in self._norm(chunk, context):
            cache = CausalCache(cached, is_start=caches.is_first and not done.groups)
            layout = InputLayout.FRAMES if len(chunk.groups[0]) == 1 else InputLayout.POINTS
            output = self._conv(normalise(chunk.groups.pop(0), modulation, layout, cache))
            output.residual = next(residual) if residual is not None else None
            done.add(to_frames_and_sums(output, self._norm.groups))
        return done


class Residual:
    """CogVideoXResnetBlock3D."""

    def __init__(self, block: Module, frames: int, dtype: torch.dtype) -> None:
        self._first = NormAndConvolution(block.norm1, block.conv1, frames, dtype)
        self._second = NormAndConvolution(block.norm2, block.conv2, frames, dtype)
        has_shortcut = block.in_channels != block.out_channels
        self._shortcut = as_linear(block.conv_shortcut, dtype) if has_shortcut else None

    def __call__(self, chunk: FrameGroups, context: ChunkContext) -> FrameGroups:
        middle = self._first(chunk.copy(), context)
        around = chunk.pop_all()
        if self._shortcut is not None:
            around = iter([self._shortcut(frames) for frames in around])
        return self._second(middle, context, around)


class Upsample:
    """CogVideoXUpsample3D: repeats pixels, and frames if `compress_time`, then convolves each frame.

    Repeated frames are equal: each is convolved once, by sub-pixel phases of the small picture, and written
    twice. A single first frame is not repeated.
    """

    def __init__(self, upsample: Module, groups: int, dtype: torch.dtype) -> None:
        self.repeats = 2 if upsample.compress_time else 1
        self._groups = groups
        self._weight = _channels_last(as_phases(upsample.conv.weight.detach().float()), dtype)
        self._bias = upsample.conv.bias.detach().float()

    def __call__(self, chunk: FrameGroups) -> FrameGroups:
        done = FrameGroups()
        for group in chunk.pop_all():
            repeats = 1 if len(group) == 1 else self.repeats
            for frames in torch.split(group, MAX_FRAMES // repeats):
                # No name for the maps: they must be freed before the next convolution.
                output = ConvOutput(
                    OutputLayout.PHASES, (convolve(frames, self._weight, padding=1),), self._bias
                )
                done.add(to_frames_and_sums(output, self._groups, repeats))
        return done


class UpBlock:
    """CogVideoXUpBlock3D; `frames` is the number of frames per group."""

    def __init__(self, block: Module, frames: int, dtype: torch.dtype) -> None:
        self._resnets = [Residual(resnet, frames, dtype) for resnet in block.resnets]
        self._upsample: Upsample | None = None
        self.frames = frames
        if block.upsamplers is not None:
            groups = block.resnets[-1].norm2.norm_layer.num_groups
            self._upsample = Upsample(block.upsamplers[0], groups, dtype)
            self.frames = min(frames * self._upsample.repeats, MAX_FRAMES)

    def __call__(self, chunk: FrameGroups, context: ChunkContext) -> FrameGroups:
        for resnet in self._resnets:
            chunk = resnet(chunk, context)
        return chunk if self._upsample is None else self._upsample(chunk)


class Stem:
    """conv_in, over each latent frame and the two before it."""

    def __init__(self, decoder: Module, dtype: torch.dtype) -> None:
        conv = decoder.conv_in.conv
        self._weight = _channels_last(torch.cat(conv.weight.detach().unbind(2), dim=1), dtype)
        self._bias = conv.bias.detach().float()
        self._groups: int = decoder.mid_block.resnets[0].norm1.norm_layer.num_groups

    def __call__(self, context: ChunkContext) -> FrameGroups:
        latents, caches = context.latents, context.caches
        cached = caches.next(
            (CACHED_FRAMES, *latents.shape[1:]), latents, may_be_uninitialised=caches.is_first
        )
        if caches.is_first:
            cached.copy_(latents[:1].expand_as(cached))
        together = torch.cat([cached, latents])
        cached.copy_(together[-CACHED_FRAMES:])
        count = len(latents)
        stacked = torch.cat([together[tap : tap + count] for tap in range(TAPS)], dim=-1)
        frames = convolve(stacked, self._weight, padding=1)
        odd = count % LATENTS_PER_CHUNK
        sizes = [1] * odd + [LATENTS_PER_CHUNK] * (count // LATENTS_PER_CHUNK)
        chunk = FrameGroups()
        for group in torch.split(frames, sizes):
            output = ConvOutput(OutputLayout.FRAMES, (group,), self._bias)
            chunk.add(to_frames_and_sums(output, self._groups))
        return chunk


class Head:
    """The last norm and convolution. Its three taps are computed together and summed by `add_taps`.

    The cache holds sums of three channels instead of two full inputs.
    """

    def __init__(self, decoder: Module, dtype: torch.dtype) -> None:
        self._norm = SpatialNorm(decoder.norm_out, dtype)
        self._weight = taps_as_channels(decoder.conv_out.conv, dtype)
        self._bias = decoder.conv_out.conv.bias.detach().float()

    def __call__(self, chunk: FrameGroups, context: ChunkContext) -> Tensor:
        _, height, width, _ = chunk.groups[0].shape
        overlap = context.caches.next((len(self._bias), CACHED_FRAMES, height, width), self._bias)
        done: list[Tensor] = []
        for modulation in self._norm(chunk, context):
            (active,) = normalise(chunk.groups.pop(0), modulation, InputLayout.FRAMES)
            maps = convolve(active, self._weight, padding=1)
            del active
            if context.caches.is_first and not done:
                self._start(overlap, maps[0])
            done.append(add_taps(maps, self._bias, overlap))
        return torch.cat(done, dim=1).unsqueeze(0)

    def _start(self, overlap: Tensor, first: Tensor) -> None:
        """Set the overlap as if two copies of the first frame came before it."""
        oldest, older, *_ = torch.split(first.permute(2, 0, 1).float(), len(self._bias))
        overlap[:, 0] = oldest + older
        overlap[:, 1] = oldest


class CogVideoXNetwork:
    """A CogVideoX decoder with converted weights. Clips keep their state in the caches that they pass in."""

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        decoder = vae.decoder
        self._dtype = dtype
        self._scale = 1 / float(vae.config.scaling_factor)
        conv = vae.post_quant_conv
        self._post_quant_conv = as_linear(conv, dtype) if conv is not None else None
        self._stem = Stem(decoder, dtype)
        frames = LATENTS_PER_CHUNK
        layers: list[Residual | UpBlock] = [
            Residual(resnet, frames, dtype) for resnet in decoder.mid_block.resnets
        ]
        for block in decoder.up_blocks:
            level = UpBlock(block, frames, dtype)
            layers.append(level)
            frames = level.frames
        self._layers = layers
        self._head = Head(decoder, dtype)

    def __call__(self, latents: Tensor, caches: CacheCursor) -> Tensor:
        """Decode a chunk of pipeline latents [1, c, n, h, w] to frames [1, 3, n, height, width]."""
        latents = (latents[0].permute(1, 2, 3, 0).float() * self._scale).to(self._dtype).contiguous()
        convolved = latents if self._post_quant_conv is None else self._post_quant_conv(latents)
        context = ChunkContext(convolved, caches)
        chunk = self._stem(context)
        for layer in self._layers:
            chunk = layer(chunk, context)
        return self._head(chunk, context)


def unsupported_cogvideox(vae: Vae) -> str | None:
    """Why the layers above cannot run this VAE's configuration, or None if they can."""
    config = vae.config
    sizes = (*config.block_out_channels, config.norm_num_groups)
    if any(size & (size - 1) for size in sizes) or min(config.block_out_channels) < 8:
        return "the VAE's channels and norm groups must be powers of two, with at least 8 channels"
    if vae.num_latent_frames_batch_size != LATENTS_PER_CHUNK:
        found = vae.num_latent_frames_batch_size
        return f"the VAE decodes {found} latent frames per chunk, not {LATENTS_PER_CHUNK}"
    if config.act_fn not in ACTIVATIONS:
        return f"the VAE's activation is {config.act_fn}, not {' or '.join(ACTIVATIONS)}"
    blocks = (vae.decoder.mid_block, *vae.decoder.up_blocks)
    resnets = [resnet for block in blocks for resnet in block.resnets]
    if any(resnet.use_conv_shortcut and resnet.in_channels != resnet.out_channels for resnet in resnets):
        return "one of the VAE's shortcuts is a convolution over time"
    if any(conv.pad_mode != "first" for resnet in resnets for conv in (resnet.conv1, resnet.conv2)):
        return "the VAE does not pad with copies of the first frame"
    return None
