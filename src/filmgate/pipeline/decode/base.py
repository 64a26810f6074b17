"""The decoder port, the memory ladder that drives it, and the checks of latents before they reach it.

Latent frames in, chunks of pixel frames out, on one rung of the ladder. If memory runs out, decoding
continues on the next rung of the same clip.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from filmgate.errors import DecodeError, OutOfMemory, UsageError
from filmgate.pipeline.transfer.streams import named_stream
from filmgate.telemetry.logs import Log

log = Log("decode")

Vae = Any
"""A diffusers autoencoder. diffusers ships no types; the decoders check the attributes they use."""


@dataclass(frozen=True, slots=True)
class ClipShape:
    """The size of a decoded clip, known before decoding starts."""

    frames: int
    height: int
    width: int
    chunk_frames: int  # frames in the longest chunk; a ring slot holds this many


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to decode. The rungs of a ladder run from the most memory to the least."""

    name: str
    tile_pixels: int | None = None  # None: whole frames
    is_cache_offloaded: bool = False  # tile caches move to host memory between chunks
    batch_frames: int | None = None  # frames per VAE call, for VAEs that allow any number


WHOLE_FRAME = Rung("whole frame")


def tile_ladder(
    shape: ClipShape, sizes: Sequence[int], *, starts_tiled: bool, offloads_caches: bool = False
) -> list[Rung]:
    """Whole frames, then tiles of these sizes; the smaller ones keep their caches on the host if that helps.

    Tiles that the frame fits into are left out. A VAE that was set to use tiles starts with them.
    """
    tiled = [
        Rung(f"{size} px tiles" + (", caches on the host" if is_offloaded else ""), size, is_offloaded)
        for size, is_offloaded in ((size, offloads_caches and n > 0) for n, size in enumerate(sizes))
        if size < max(shape.height, shape.width)
    ]
    return tiled if starts_tiled and tiled else [WHOLE_FRAME, *tiled]


class VideoDecoder(Protocol):
    """Drives one VAE. Keeps no state between calls: several clips can be decoded at the same time."""

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        """Convert pipeline latents (`output_type="latent"`) to the VAE's: de-normalised, [1, C, T, h, w]."""
        ...

    def shape(self, latents: Tensor) -> ClipShape:
        """The size of the clip that these VAE latents decode to."""
        ...

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        """The memory ladder for these latents, most memory first."""
        ...

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        """Frames [3, n, height, width] in [-1, 1] on the VAE's device, in order."""
        ...


@torch.inference_mode()
def decode_frames(
    decoder: VideoDecoder,
    latents: Tensor,
    on_rung: Callable[[Rung], None] | None = None,
    check: Callable[[], None] | None = None,
    start: int = 0,
) -> Iterator[Tensor]:
    """Yield every frame from `start` once, in order, on the highest rung that fits in memory.

    A lower rung decodes the clip from the start to rebuild its caches, and yields only frames that have not
    been yielded yet. `check` runs after each chunk is queued and before it is yielded; it may raise to reject
    the latents. Raises OutOfMemory if the last rung does not fit.
    """
    tried: list[str] = []
    done = start
    for rung in decoder.rungs(latents):
        if on_rung is not None:
            on_rung(rung)
        at = 0
        chunks = decoder.chunks(latents, rung)
        while not isinstance(frames := _next_chunk(chunks), _NoMemory):
            if check is not None:
                check()
            if frames is None:
                return
            at += frames.shape[1]
            if at > done:
                fresh, done = at - done, at
                yield frames[:, -fresh:]
            del frames  # the decoder may need this memory for the next chunk
        tried.append(rung.name)
        log.warning("memory ran out on this rung of the memory ladder", rung=rung.name, frame=done)
        del chunks
        release_memory()
    raise OutOfMemory(
        f"the clip does not fit into GPU memory even as {tried[-1]} (tried: {', '.join(tried)}); "
        "free memory on the GPU, lower --size, or set pipeline.offload to model"
    )


class _NoMemory:
    """Returned instead of a chunk that does not fit in memory."""


def _next_chunk(chunks: Iterator[Tensor]) -> Tensor | _NoMemory | None:
    # The exception must be gone before memory is released: its traceback references the layers' tensors.
    try:
        return next(chunks, None)
    except torch.OutOfMemoryError:
        return _NoMemory()


def release_memory() -> None:
    """Return unused GPU memory to the driver."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
        stream = named_stream(self._values.device, "check latents")
        stream.wait_event(self._values_ready)
        result = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True)
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            result.copy_(are_finite(self._values), non_blocking=True)
            done.record(stream)
        done.synchronize()
        return result
