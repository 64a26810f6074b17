"""CogVideoX's decoder, layer by layer, on the fast path.

Its norms are over a whole chunk of up to nine frames, so a chunk passes each layer together, in groups of
frames: a clip's first frame alone where their number is odd, then twos or fours, as Winograd takes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import linear

from filmgate.pipeline.decode.base import Vae
from filmgate.pipeline.decode.fast.group_passes import (
    Conditioning,
    GroupNorm,
    Memory,
    condition,
    gather,
    settle,
)
from filmgate.pipeline.decode.fast.layers import (
    Module,
    Tape,
    as_matrix,
    as_phases,
    at_home,
    convolve,
    taps_beside,
)
from filmgate.pipeline.decode.fast.passes import (
    CACHED_FRAMES,
    MOST_FRAMES,
    TAPS,
    Layout,
    Pending,
    Source,
    add_taps,
)
from filmgate.pipeline.decode.fast.winograd import TRANSFORMS

LATENTS_A_CHUNK = 2
ACTIVATIONS = ("silu", "swish")


@dataclass(frozen=True, slots=True)
class Span:
    """What every layer sees of a chunk beside frames: its latents [n, h, w, c] and the stream's caches."""

    latents: Tensor
    tape: Tape

    def latents_of(self, at: int, count: int, frames: int) -> slice:
        """The latent frames that `count` frames from `at` on belong to, where the chunk has `frames`."""
        lone = frames % 2
        each = (frames - lone) // max(len(self.latents) - lone, 1)
        first, last = (n if n < lone else lone + (n - lone) // each for n in (at, at + count - 1))
        return slice(first, last + 1)


@dataclass(slots=True)
class Chunk:
    """Frames in groups, with partial sums of each group. Whoever takes a group out may write over it."""

    groups: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)

    def add(self, gathered: tuple[Tensor, Tensor]) -> None:
        frames, sums = gathered
        self.groups.append(frames)
        self.sums.append(sums)

    def copy(self) -> "Chunk":
        """The same frames, to be taken out once more."""
        return Chunk(list(self.groups), list(self.sums))

    def take(self) -> Iterator[Tensor]:
        """Group after group, each given up as it is handed out."""
        while self.groups:
            yield self.groups.pop(0)


class SpatialNorm:
    """CogVideoXSpatialNorm3D. Its convolutions of the latents are one matrix, applied at their own size."""

    def __init__(self, norm: Module, dtype: torch.dtype) -> None:
        inner = norm.norm_layer
        self.groups: int = inner.num_groups
        self._norm = GroupNorm(
            inner.weight.detach().float(), inner.bias.detach().float(), inner.num_groups, inner.eps
        )
        both = norm.conv_y.conv, norm.conv_b.conv
        self._matrix = torch.cat([conv.weight.detach().flatten(1) for conv in both]).to(dtype)
        self._bias = torch.cat([conv.bias.detach() for conv in both]).to(dtype)

    def __call__(self, chunk: Chunk, span: Span) -> list[Conditioning]:
        """What to make of each group of frames."""
        frames = sum(len(group) for group in chunk.groups)
        count = frames * chunk.groups[0][0].numel() // self.groups
        settled = settle(chunk.sums, self._norm, count)
        looked_up = linear(span.latents, self._matrix, self._bias)
        conditionings, at = [], 0
        for group in chunk.groups:
            place = span.latents_of(at, len(group), frames)
            conditionings.append(Conditioning(settled, looked_up[place]))
            at += len(group)
        return conditionings


class Convolution:
    """A 3 x 3 x 3 causal convolution: by Winograd over two or four frames, one tap for a clip's first frame.

    Before the first frame come copies of it, so its three taps see the same and are added up beforehand.
    """

    def __init__(self, conv: Module, frames: int, dtype: torch.dtype) -> None:
        taps = conv.weight.detach().float()
        transformed = torch.einsum("st,oithw->soihw", taps.new_tensor(TRANSFORMS[frames].taps), taps)
        self._slots = [_laid_out(weight, dtype) for weight in transformed]
        self._lone = _laid_out(taps.sum(2), dtype)
        self._bias = conv.bias.detach().float()

    def __call__(self, inputs: list[Tensor]) -> Pending:
        """What it makes of its inputs; each is given up once it has been read, to be written over."""
        if len(inputs) == 1:
            return Pending(Source.FRAMES, (convolve(inputs.pop(), self._lone, padding=1),), self._bias)
        maps = tuple(convolve(inputs.pop(0), weight, padding=1) for weight in self._slots)
        return Pending(Source.SLOTS, maps, self._bias)


def _laid_out(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype).contiguous(memory_format=torch.channels_last)


class Half:
    """Norm, SiLU and convolution: one of the two halves of a residual block."""

    def __init__(self, norm: Module, conv: Module, frames: int, dtype: torch.dtype) -> None:
        self._norm = SpatialNorm(norm, dtype)
        self._conv = Convolution(conv.conv, frames, dtype)

    def __call__(self, chunk: Chunk, span: Span, residual: Iterator[Tensor] | None = None) -> Chunk:
        first, tape = chunk.groups[0], span.tape
        cache = tape.next((CACHED_FRAMES, *first.shape[1:]), first, is_begun=tape.is_first)
        del first
        done = Chunk()
        for conditioning in self._norm(chunk, span):
            memory = Memory(cache, begins=tape.is_first and not done.groups)
            layout = Layout.FRAMES if len(chunk.groups[0]) == 1 else Layout.SLOTS
            pending = self._conv(condition(chunk.groups.pop(0), conditioning, layout, memory))
            pending.residual = next(residual) if residual is not None else None
            done.add(gather(pending, self._norm.groups))
        return done


class Residual:
    """CogVideoXResnetBlock3D."""

    def __init__(self, block: Module, frames: int, dtype: torch.dtype) -> None:
        self._first = Half(block.norm1, block.conv1, frames, dtype)
        self._second = Half(block.norm2, block.conv2, frames, dtype)
        has_shortcut = block.in_channels != block.out_channels
        self._shortcut = as_matrix(block.conv_shortcut, dtype) if has_shortcut else None

    def __call__(self, chunk: Chunk, span: Span) -> Chunk:
        middle = self._first(chunk.copy(), span)
        around = chunk.take()
        if self._shortcut is not None:
            around = iter([self._shortcut(frames) for frames in around])
        return self._second(middle, span, around)


class Upsample:
    """CogVideoXUpsample3D: pixels, and frames where it says so, repeated before a convolution of each frame.

    Repeated frames are alike: each is convolved once, by sub-pixel phases of the small picture, and written
    as often as it is shown. A clip's first frame, where it goes alone, is shown once.
    """

    def __init__(self, upsample: Module, groups: int, dtype: torch.dtype) -> None:
        self.times = 2 if upsample.compress_time else 1
        self._groups = groups
        self._weight = _laid_out(as_phases(upsample.conv.weight.detach().float()), dtype)
        self._bias = upsample.conv.bias.detach().float()

    def __call__(self, chunk: Chunk) -> Chunk:
        done = Chunk()
        for group in chunk.take():
            times = 1 if len(group) == 1 else self.times
            for frames in torch.split(group, MOST_FRAMES // times):
                pending = Pending(Source.PHASES, (convolve(frames, self._weight, padding=1),), self._bias)
                done.add(gather(pending, self._groups, times))
        return done


class UpBlock:
    """CogVideoXUpBlock3D; `frames` is how many a group of its chunks has."""

    def __init__(self, block: Module, frames: int, dtype: torch.dtype) -> None:
        self._resnets = [Residual(resnet, frames, dtype) for resnet in block.resnets]
        self._upsample: Upsample | None = None
        self.frames = frames
        if block.upsamplers is not None:
            groups = block.resnets[-1].norm2.norm_layer.num_groups
            self._upsample = Upsample(block.upsamplers[0], groups, dtype)
            self.frames = min(frames * self._upsample.times, MOST_FRAMES)

    def __call__(self, chunk: Chunk, span: Span) -> Chunk:
        for resnet in self._resnets:
            chunk = resnet(chunk, span)
        return chunk if self._upsample is None else self._upsample(chunk)


class Entrance:
    """conv_in, over each latent frame and the two before it."""

    def __init__(self, decoder: Module, dtype: torch.dtype) -> None:
        conv = decoder.conv_in.conv
        self._weight = _laid_out(torch.cat(conv.weight.detach().unbind(2), dim=1), dtype)
        self._bias = conv.bias.detach().float()
        self._groups: int = decoder.mid_block.resnets[0].norm1.norm_layer.num_groups

    def __call__(self, span: Span) -> Chunk:
        latents, tape = span.latents, span.tape
        cache = tape.next((CACHED_FRAMES, *latents.shape[1:]), latents, is_begun=tape.is_first)
        if tape.is_first:
            cache.copy_(latents[:1].expand_as(cache))
        together = torch.cat([cache, latents])
        cache.copy_(together[-CACHED_FRAMES:])
        count = len(latents)
        stacked = torch.cat([together[tap : tap + count] for tap in range(TAPS)], dim=-1)
        frames = convolve(stacked, self._weight, padding=1)
        lone = count % LATENTS_A_CHUNK
        sizes = [1] * lone + [LATENTS_A_CHUNK] * (count // LATENTS_A_CHUNK)
        chunk = Chunk()
        for group in torch.split(frames, sizes):
            chunk.add(gather(Pending(Source.FRAMES, (group,), self._bias), self._groups))
        return chunk


class Head:
    """The last norm and convolution, its three taps beside each other: what is remembered is thin."""

    def __init__(self, decoder: Module, dtype: torch.dtype) -> None:
        self._norm = SpatialNorm(decoder.norm_out, dtype)
        self._weight = taps_beside(decoder.conv_out.conv, dtype)
        self._bias = decoder.conv_out.conv.bias.detach().float()

    def __call__(self, chunk: Chunk, span: Span) -> Tensor:
        _, height, width, _ = chunk.groups[0].shape
        carry = span.tape.next((len(self._bias), CACHED_FRAMES, height, width), self._bias)
        done: list[Tensor] = []
        for conditioning in self._norm(chunk, span):
            (active,) = condition(chunk.groups.pop(0), conditioning, Layout.FRAMES)
            maps = convolve(active, self._weight, padding=1)
            del active
            if span.tape.is_first and not done:
                self._begin(carry, maps[0])
            done.append(add_taps(maps, self._bias, carry))
        return torch.cat(done, dim=1).unsqueeze(0)

    def _begin(self, carry: Tensor, first: Tensor) -> None:
        """What two copies of the first frame would have left it and the frame after it."""
        oldest, older, *_ = torch.split(first.permute(2, 0, 1).float(), len(self._bias))
        carry[:, 0] = oldest + older
        carry[:, 1] = oldest


class CogVideoXNetwork:
    """A CogVideoX decoder with its weights laid out again. Holds no state of a clip: that is on its tapes."""

    def __init__(self, vae: Vae, dtype: torch.dtype) -> None:
        decoder = vae.decoder
        self._device: torch.device = vae.device
        self._dtype = dtype
        self._scale = 1 / float(vae.config.scaling_factor)
        before = vae.post_quant_conv
        self._before = as_matrix(before, dtype) if before is not None else None
        self._entrance = Entrance(decoder, dtype)
        frames = LATENTS_A_CHUNK
        layers: list[Residual | UpBlock] = [
            Residual(resnet, frames, dtype) for resnet in decoder.mid_block.resnets
        ]
        for block in decoder.up_blocks:
            level = UpBlock(block, frames, dtype)
            layers.append(level)
            frames = level.frames
        self._layers = layers
        self._head = Head(decoder, dtype)

    def __call__(self, latents: Tensor, tape: Tape) -> Tensor:
        """A chunk of the pipeline's latents [1, c, n, h, w] to frames [1, 3, n, height, width]."""
        with at_home(self._device):
            latents = (latents[0].permute(1, 2, 3, 0).float() * self._scale).to(self._dtype).contiguous()
            span = Span(latents if self._before is None else self._before(latents), tape)
            chunk = self._entrance(span)
            for layer in self._layers:
                chunk = layer(chunk, span)
            return self._head(chunk, span)


def why_not_cogvideox(vae: Vae) -> str | None:
    """What in this VAE's configuration the layers above do not know, or None."""
    config = vae.config
    sizes = (*config.block_out_channels, config.norm_num_groups)
    if any(size & (size - 1) for size in sizes) or min(config.block_out_channels) < 8:
        return "its channels or their groups are no powers of two"
    if vae.num_latent_frames_batch_size != LATENTS_A_CHUNK:
        return f"it decodes {vae.num_latent_frames_batch_size} latent frames together, not {LATENTS_A_CHUNK}"
    if config.act_fn not in ACTIVATIONS:
        return f"it activates by {config.act_fn}"
    blocks = (vae.decoder.mid_block, *vae.decoder.up_blocks)
    resnets = [resnet for block in blocks for resnet in block.resnets]
    if any(resnet.use_conv_shortcut and resnet.in_channels != resnet.out_channels for resnet in resnets):
        return "a shortcut of it is a convolution over time"
    if any(conv.pad_mode != "first" for resnet in resnets for conv in (resnet.conv1, resnet.conv2)):
        return "it does not begin with copies of its first frame"
    return None
