"""Turns the latents of any diffusers pipeline into a finished MP4; decode, copy and encode overlap."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from filmgate import __version__
from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.decode import DecoderChoice, fallback_decoder, open_decoder
from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, VideoDecoder
from filmgate.pipeline.decode.ladder import decode_frames
from filmgate.pipeline.decode.latents import FiniteCheck
from filmgate.pipeline.encode.clip_file import ClipFile, ClipSpool, ClipTarget, OnFragment, SpooledClip
from filmgate.pipeline.encode.encoder import ClipEncoder, EncodeOptions
from filmgate.pipeline.encode.mux import head_bytes
from filmgate.pipeline.encode.stills import OnStill, StillPaths, Stills
from filmgate.pipeline.transfer.channel import pull
from filmgate.pipeline.transfer.colour import Layout, Rgb24
from filmgate.pipeline.transfer.loops import Consumer, NonFiniteFrames, Rings, carry_overlapped
from filmgate.pipeline.transfer.streams import Streams, Timeline, open_streams
from filmgate.pipeline.wipe import shares_memory, wiping
from filmgate.telemetry.logs import Log

log = Log("transfer")

Carry = Callable[..., None]


@dataclass(frozen=True, slots=True)
class ClipOutputs:
    """What to produce besides the file: metadata, stills, and callbacks.

    `on_spool` is called before the first frame if the clip has no path. With `scaled_to`, frames are scaled
    to this size before they are encoded. `owner` is whose clip it is, usually a tenant: buffers that hold
    frames of another owner are overwritten before they are used.
    """

    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    stills: StillPaths = field(default_factory=StillPaths)
    on_fragment: OnFragment | None = None
    on_still: OnStill | None = None
    on_spool: Callable[[ClipSpool], None] | None = None
    scaled_to: tuple[int, int] | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Phases:
    """The time of each phase. Only decoding depends on the length of the clip."""

    setup_seconds: float  # rings, file and encoder, until the first chunk is requested
    decode_seconds: float  # until the device has finished the last chunk
    drain_seconds: float  # copy and encoding of the last chunk, and the frames that the encoder buffers
    publish_seconds: float  # stills, fsync, rename


@dataclass(frozen=True, slots=True)
class ClipReport:
    """A finished clip and what it took. Without a path the clip is in `spool`, which the caller closes."""

    path: Path | None
    spool: ClipSpool | None
    size_bytes: int
    shape: ClipShape
    seconds: float
    first_fragment_seconds: float
    rung: str
    phases: Phases


class ClipWriter:
    """Writes clips from the latents of one VAE. Clips of the same shape reuse its buffers.

    The next clip may be written as soon as this one has only its encoder to flush and its file to publish.
    """

    def __init__(
        self,
        vae: Vae,
        options: EncodeOptions | None = None,
        slots: tuple[int, int] = (2, 8),
        carry: Carry = carry_overlapped,
        latents_per_chunk: int = 1,
        decoder: DecoderChoice = "auto",
    ) -> None:
        self._vae = vae
        self._options = options or EncodeOptions()
        self._slots = slots
        self._carry = carry
        self._latents_per_chunk = latents_per_chunk
        self._decoder: DecoderChoice = decoder
        self._rings: tuple[ClipShape, Rings] | None = None
        self._rings_in_use = Lock()

    def write(
        self,
        latents: Tensor,
        path: Path | None,
        outputs: ClipOutputs | None = None,
        control: Control | None = None,
        make_timeline: Callable[[Rings], Timeline] | None = None,
    ) -> ClipReport:
        """Decode, encode and publish one clip at `path`, or in a spool if there is no path.

        Raises RunError subclasses and then leaves no file behind.
        """
        started = time.perf_counter()
        outputs, control = outputs or ClipOutputs(), control or Control()
        device = bring_to_device(self._vae)
        decoder = open_decoder(self._vae, self._latents_per_chunk, self._decoder)
        shape = decoder.shape(decoder.to_vae_latents(latents.to("meta")))
        stills = Stills(outputs.stills, shape.frames, outputs.on_still, self._options.layout)
        timeline = make_timeline(self._rings_for(shape, device)) if make_timeline else None
        moments, rungs = [started], list[str]()
        with closing(_target(path, outputs, shape.frames)) as clip:
            size = outputs.scaled_to or (shape.width, shape.height)
            encoder = ClipEncoder(clip, size, shape.frames, self._options, timeline)
            if outputs.on_spool and isinstance(clip, SpooledClip):
                outputs.on_spool(clip.spool)

            def take_rung(rung: Rung) -> None:
                if rungs:
                    control.on_step_down(rung.name)
                rungs.append(rung.name)

            def carry(decoder: VideoDecoder, consume: Consumer, start: int) -> None:
                rungs.clear()
                rings = self._rings_for(shape, device)
                rings.owner = outputs.owner
                chunks = self._decoded(decoder, latents, device, start, take_rung)
                watched = _watched(chunks, rings.streams, moments, control)
                self._run(watched, rings, consume, control, timeline)

            def consume(frames: np.ndarray, done: int) -> None:
                stills.add(frames)
                encoder.write(frames)
                control.report(Stage.DECODE, done, shape.frames)

            with self._rings_in_use:  # the previous clip may still be copied and encoded
                _carry_with_fallback(decoder, carry, consume)
            control.report(Stage.FINISH, 0, 1)
            encoder.finish()
            moments.append(time.perf_counter())
            size_bytes = _publish(clip, stills)
        moments.append(time.perf_counter())
        control.report(Stage.FINISH, 1, 1)
        first = (encoder.first_fragment_at or started) - started
        spool = clip.spool if isinstance(clip, SpooledClip) else None
        phases = Phases(*(after - before for before, after in pairwise(moments)))
        return ClipReport(path, spool, size_bytes, shape, moments[-1] - started, first, rungs[-1], phases)

    def _decoded(
        self,
        decoder: VideoDecoder,
        latents: Tensor,
        device: torch.device,
        start: int,
        on_rung: Callable[[Rung], None],
    ) -> Iterator[Tensor]:
        # Starts with the first request: the GPU must not wait for files, encoders and threads in between.
        ready, verdict = make_ready(decoder, latents, device, self._vae.dtype)
        with wiping(None if shares_memory(ready, latents) else ready):
            for frames in decode_frames(decoder, ready, on_rung, verdict.require, start):
                with wiping(frames):  # the next chunk is requested when this one is converted
                    yield frames
                del frames  # the decoder may need this memory for the next chunk

    def _run(self, chunks: Iterator[Tensor], rings: Rings, *rest: object) -> None:
        try:
            self._carry(chunks, rings, *rest)
        except BaseException:
            self._rings = None  # the failure closed them; the next clip needs new ones
            raise

    def _rings_for(self, shape: ClipShape, device: torch.device) -> Rings:
        if self._rings is None or self._rings[0] != shape:
            self._rings = (shape, Rings(open_streams(device), self._options.layout, shape, self._slots))
        return self._rings[1]


def save_video(vae: Vae, latents: Tensor, path: str | Path, *, fps: float = 16) -> Path:
    """Write latents, as a diffusers pipeline returns them with `output_type="latent"`, to an MP4."""
    ClipWriter(vae, EncodeOptions(fps=fps)).write(latents, Path(path))
    return Path(path)


def stream_frames(vae: Vae, latents: Tensor) -> Iterator[np.ndarray]:
    """Yield frames as uint8 [n, height, width, 3] by chunk, while the GPU decodes the next one."""
    device = bring_to_device(vae)
    chosen = open_decoder(vae)
    layout: Layout = Rgb24()
    streams, control = open_streams(device), Control()

    def carry(decoder: VideoDecoder, consume: Consumer, start: int) -> None:
        ready, verdict = make_ready(decoder, latents, device, vae.dtype)
        verdict.require()
        rings = Rings(streams, layout, decoder.shape(ready), (2, 4))
        carry_overlapped(decode_frames(decoder, ready, start=start), rings, consume, control)

    def decode(emit: Callable[[np.ndarray], None]) -> None:
        with streams.on_compute():
            _carry_with_fallback(chosen, carry, lambda frames, _: emit(frames.copy()))

    yield from pull(decode, capacity=2, stop=control.cancel, name="filmgate-decode")


def prepare(
    vae: Vae, latents: Tensor, latents_per_chunk: int = 1, choice: DecoderChoice = "auto"
) -> tuple[VideoDecoder, Tensor]:
    """Return the decoder for this VAE and the checked latents, in its format and on its device."""
    device = bring_to_device(vae)
    decoder = open_decoder(vae, latents_per_chunk, choice)
    ready, verdict = make_ready(decoder, latents, device, vae.dtype)
    verdict.require()
    return decoder, ready


@torch.inference_mode()
def make_ready(
    decoder: VideoDecoder, latents: Tensor, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, FiniteCheck]:
    """Return the latents in the format of the VAE, on its device, and a check that they are finite."""
    ready = decoder.to_vae_latents(latents.to(device=device, dtype=dtype))
    return ready, FiniteCheck(ready)


def _target(path: Path | None, outputs: ClipOutputs, frames: int) -> ClipTarget:
    metadata = {f"filmgate_{key}": value for key, value in outputs.metadata.items()}
    metadata = {"filmgate_version": __version__, **metadata}
    if path is None:
        spool = ClipSpool(head_bytes(frames, metadata))
        return SpooledClip(spool, metadata, outputs.on_fragment)
    return ClipFile(path, metadata, outputs.on_fragment)


def _carry_with_fallback(
    decoder: VideoDecoder,
    carry: Callable[[VideoDecoder, Consumer, int], None],
    consume: Callable[[np.ndarray, int], None],
) -> None:
    """Decode with `carry(decoder, consumer, start)`; `consume` gets the frames and their number so far.

    If a fast decoder produces NaN or infinity, the exact decoder continues from that frame. The frames before
    it are not decoded again.
    """
    done = 0

    def count(frames: np.ndarray) -> None:
        nonlocal done
        done += len(frames)
        consume(frames, done)

    try:
        carry(decoder, count, done)
        return
    except NonFiniteFrames:
        exact = fallback_decoder(decoder)
        if exact is None:
            raise
    log.warning("the fast decoder produced NaN or infinity; continuing with the exact decoder", frames=done)
    carry(exact, count, done)


def _publish(clip: ClipTarget, stills: Stills) -> int:
    """Publish the clip after its stills, so that a published clip has all of them."""
    try:
        stills.save()
        return clip.publish()
    except BaseException:
        stills.discard()
        raise


def _watched(
    chunks: Iterator[Tensor], streams: Streams, moments: list[float], control: Control
) -> Iterator[Tensor]:
    """Yield the chunks and record when the first was requested and when the device finished the last.

    The clip leaves the device when its last chunk is queued: the next clip queues its first step behind it.
    """
    if len(moments) == 1:
        moments.append(time.perf_counter())
    del moments[2:]  # times of a fast decoder that the exact decoder replaces
    yield from chunks
    last = streams.mark_compute()
    control.leave_device()
    last.wait_on_host()
    moments.append(time.perf_counter())


def bring_to_device(vae: Vae) -> torch.device:
    """Move the VAE to its device and return the device.

    Decoders do not call the VAE's `forward`, so accelerate's hook must be called here.
    """
    hook = getattr(vae, "_hf_hook", None)
    if hook is not None and hasattr(hook, "pre_forward"):
        hook.pre_forward(vae)
        return torch.device(getattr(hook, "execution_device", None) or vae.device)
    device: torch.device = vae.device
    return device
