"""Turns the latents of any diffusers pipeline into a finished MP4; decode, copy and encode overlap."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import MappingProxyType

import numpy as np
import torch
from accelerate.hooks import CpuOffload
from torch import Tensor

from filmgate import __version__
from filmgate.jobs import Stage
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode import DecoderChoice, fallback_decoder, open_decoder
from filmgate.pipeline.decode.base import ClipShape, FiniteCheck, Rung, Vae, VideoDecoder, decode_frames
from filmgate.pipeline.decode.fast.decoder import forget_network
from filmgate.pipeline.encode.clip_file import ClipFile, ClipSpool, ClipTarget, OnFragment
from filmgate.pipeline.encode.encoder import ClipEncoder, EncodeOptions
from filmgate.pipeline.encode.mux import head_bytes
from filmgate.pipeline.encode.stills import OnStill, StillPaths, Stills
from filmgate.pipeline.launch import is_kernel_error
from filmgate.pipeline.memory_errors import out_of_memory_as
from filmgate.pipeline.transfer.channel import pull
from filmgate.pipeline.transfer.colour import Rgb24
from filmgate.pipeline.transfer.loops import Consumer, NonFiniteFrames, Rings, transfer_overlapped
from filmgate.pipeline.transfer.streams import AnyTimeline, Streams, open_streams
from filmgate.pipeline.wipe import shares_memory, wiping
from filmgate.telemetry.logs import Log

log = Log("transfer")

Loop = Callable[[Iterator[Tensor], Rings, Consumer, Control, AnyTimeline | None], None]
OpenRings = Callable[[], AbstractContextManager[Rings]]
OnFrames = Callable[[np.ndarray, int], None]
"""Receives frames as a Consumer does, and their number so far."""


@dataclass(frozen=True, slots=True)
class ClipOutputs:
    """What to produce besides the file: metadata, stills, and callbacks.

    `on_spool` is called before the first frame if the clip has no path. With `scaled_to`, frames are scaled
    to this size before they are encoded. `owner` is whose clip it is, usually a tenant: buffers that hold
    frames of another owner are overwritten before they are used. `dropped_frames` at the start are decoded,
    but not part of the clip.
    """

    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    stills: StillPaths = field(default_factory=StillPaths)
    on_fragment: OnFragment | None = None
    on_still: OnStill | None = None
    on_spool: Callable[[ClipSpool], None] | None = None
    scaled_to: tuple[int, int] | None = None
    owner: str = ""
    dropped_frames: int = 0


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


class FrameSource:
    """The frames of one clip: from the chosen decoder, and from the exact one after NaN or a kernel error.

    `rung` is the last rung that was used. `requested_at` is the time when the first chunk was requested,
    `decoded_at` when the device had finished the last one.
    """

    def __init__(
        self,
        vae: Vae,
        latents: Tensor,
        control: Control,
        choice: DecoderChoice = "auto",
        latents_per_chunk: int = 1,
        dropped_frames: int = 0,
    ) -> None:
        self._vae = vae
        self._latents = latents
        self._control = control
        self.device = bring_to_device(vae)
        self._decoder = open_decoder(vae, latents_per_chunk, choice)
        decoded = self._decoder.shape(self._decoder.to_vae_latents(latents.to("meta")))
        self.shape = replace(decoded, frames=decoded.frames - dropped_frames)
        self.rung = ""
        self.requested_at: float | None = None
        self.decoded_at = 0.0
        self._dropped = dropped_frames
        self._done = dropped_frames

    def run(
        self, loop: Loop, open_rings: OpenRings, on_frames: OnFrames, timeline: AnyTimeline | None = None
    ) -> None:
        """Pass all frames to `on_frames`. The exact decoder continues where the fast one cannot."""

        def consume(frames: np.ndarray) -> None:
            self._done += len(frames)
            on_frames(frames, self._done - self._dropped)

        def decode(decoder: VideoDecoder) -> None:
            with open_rings() as rings:
                loop(self._chunks(decoder, rings.streams), rings, consume, self._control, timeline)

        try:
            decode(self._decoder)
            return
        except Exception as exc:
            exact, is_not_finite = fallback_decoder(self._decoder), isinstance(exc, NonFiniteFrames)
            if exact is None or not (is_not_finite or is_kernel_error(exc)):
                raise
        why = "produced NaN or infinity" if is_not_finite else "could not run a kernel"
        message = f"the fast decoder {why}; continuing with the exact decoder"
        log.warning(message, frames=self._done)
        self._control.enter_device()  # the next clip may have it by now
        decode(exact)

    def _chunks(self, decoder: VideoDecoder, streams: Streams) -> Iterator[Tensor]:
        """The chunks that have not been passed on. The clip leaves the device when the last one is queued.

        Starts with the first request: the GPU must not wait for files, encoders and threads in between.
        """
        self.requested_at = self.requested_at or time.perf_counter()
        self.rung = ""
        latents = self._latents
        bring_to_device(self._vae)  # again, for the exact decoder
        ready, verdict = make_ready(decoder, latents, self.device, self._vae.dtype)
        with wiping(None if shares_memory(ready, latents) else ready), returned_to_host(self._vae):
            for frames in decode_frames(decoder, ready, self._take_rung, verdict.require, self._done):
                with wiping(frames):  # the next chunk is requested when this one is converted
                    yield frames
                del frames  # the decoder may need this memory for the next chunk
        last = streams.mark_compute()
        self._control.leave_device()  # the next clip queues its first step behind the last chunk
        last.wait_on_host()
        self.decoded_at = time.perf_counter()

    def _take_rung(self, rung: Rung) -> None:
        if self.rung:
            self._control.step_down(rung.name)
        self.rung = rung.name


class ClipWriter:
    """Writes clips from the latents of one VAE. Clips of the same shape reuse its buffers.

    The next clip may be written as soon as this one has only its encoder to flush and its file to publish.
    """

    def __init__(
        self,
        vae: Vae,
        options: EncodeOptions | None = None,
        slots: tuple[int, int] = (2, 8),
        loop: Loop = transfer_overlapped,
        latents_per_chunk: int = 1,
        decoder: DecoderChoice = "auto",
    ) -> None:
        self._vae = vae
        self._options = options or EncodeOptions()
        self._slots = slots
        self._loop = loop
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
        timeline: AnyTimeline | None = None,
    ) -> ClipReport:
        """Decode, encode and publish one clip at `path`, or in a spool if there is no path.

        Raises RunError subclasses and then leaves no file behind.
        """
        started = time.perf_counter()
        outputs, control = outputs or ClipOutputs(), control or Control()
        source = FrameSource(
            self._vae, latents, control, self._decoder, self._latents_per_chunk, outputs.dropped_frames
        )
        shape = source.shape
        layout = self._options.layout
        stills = Stills(outputs.stills, shape.frames, outputs.on_still, layout, outputs.scaled_to)
        clip = _target(path, outputs, shape.frames)
        width, height = size = outputs.scaled_to or (shape.width, shape.height)
        with ExitStack() as on_error:
            on_error.callback(clip.close)
            encoder = ClipEncoder(clip, size, shape.frames, self._options, timeline)
            on_error.callback(encoder.abandon)
            if outputs.on_spool and isinstance(clip, ClipSpool):
                outputs.on_spool(clip)

            def on_frames(frames: np.ndarray, done: int) -> None:
                stills.add(frames)
                encoder.write(frames)
                control.report(Stage.DECODE, done, shape.frames)

            source.run(self._loop, partial(self._open_rings, source, outputs.owner), on_frames, timeline)
            encoder.finish()
            drained = time.perf_counter()
            size_bytes = _publish(clip, stills)
            on_error.pop_all()
        published = time.perf_counter()
        first = (encoder.first_fragment_at or started) - started
        spool = clip if isinstance(clip, ClipSpool) else None
        times = (started, source.requested_at or started, source.decoded_at, drained, published)
        phases = Phases(*(after - before for before, after in pairwise(times)))
        shape = replace(shape, width=width, height=height)
        return ClipReport(path, spool, size_bytes, shape, published - started, first, source.rung, phases)

    @contextmanager
    def _open_rings(self, source: FrameSource, owner: str) -> Iterator[Rings]:
        with self._rings_in_use:  # the previous clip may still be copied and encoded
            if self._rings is None or self._rings[0] != source.shape or self._rings[1].is_closed:
                streams = open_streams(source.device)
                self._rings = source.shape, Rings(streams, self._options.layout, source.shape, self._slots)
            rings = self._rings[1]
            rings.owner = owner
            yield rings


def save_video(vae: Vae, latents: Tensor, path: str | Path, *, fps: float = 16) -> Path:
    """Write latents, as a diffusers pipeline returns them with `output_type="latent"`, to an MP4."""
    ClipWriter(vae, EncodeOptions(fps=float(fps))).write(latents, Path(path))
    return Path(path)


def stream_frames(vae: Vae, latents: Tensor) -> Iterator[np.ndarray]:
    """Yield frames as uint8 [n, height, width, 3] by chunk, while the GPU decodes the next one."""
    control = Control()
    source = FrameSource(vae, latents, control)
    streams = open_streams(source.device)

    def open_rings() -> AbstractContextManager[Rings]:
        return nullcontext(Rings(streams, Rgb24(), source.shape, (2, 4)))

    def decode(emit: Callable[[np.ndarray], None]) -> None:
        with streams.on_compute():
            source.run(transfer_overlapped, open_rings, lambda frames, _: emit(frames.copy()))

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
        return ClipSpool(head_bytes(frames, metadata), metadata, outputs.on_fragment)
    return ClipFile(path, metadata, outputs.on_fragment)


def _publish(clip: ClipTarget, stills: Stills) -> int:
    """Publish the clip after its stills, so that a published clip has all of them."""
    try:
        stills.save()
        return clip.publish()
    except BaseException:
        stills.discard()
        raise


def bring_to_device(vae: Vae) -> torch.device:
    """Move the VAE to its device, unless its layers are moved one by one, and return the device.

    Decoders do not call the VAE's `forward`, so accelerate's hook must be called here.
    """
    if isinstance(hook := getattr(vae, "_hf_hook", None), CpuOffload):
        with out_of_memory_as(
            "the VAE does not fit into GPU memory; free memory on the GPU, or set pipeline.offload to layers"
        ):
            hook.pre_forward(vae)
    device: torch.device = next(_execution_devices(vae), vae.device)
    return device


@contextmanager
def returned_to_host(vae: Vae) -> Iterator[None]:
    """If the VAE is offloaded between its uses, free its GPU memory after the block; its copy waits."""
    try:
        yield
    finally:
        if isinstance(hook := getattr(vae, "_hf_hook", None), CpuOffload):
            forget_network(vae)
            hook.init_hook(vae)


def _execution_devices(vae: Vae) -> Iterator[torch.device]:
    """Where accelerate's hooks run the layers. The weights of offloaded layers are on no device."""
    for module in vae.modules():
        hook = getattr(module, "_hf_hook", None)
        for each in getattr(hook, "hooks", [hook]):
            device = getattr(each, "execution_device", None)
            if device is not None:
                yield torch.device(device)
