"""The whole pipeline for one clip: text -> denoise -> decode || copy || encode, each stage timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from filmgate.errors import OutOfMemory
from filmgate.pipeline.clip_writer import ClipOutputs, ClipReport, ClipWriter
from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.decode import check_choice
from filmgate.pipeline.denoise.denoise import ClipRequest, DenoisedClip, denoise
from filmgate.pipeline.encode.clip_file import check_target
from filmgate.pipeline.encode.encoder import EncodeOptions, threads_up_to
from filmgate.pipeline.loading.compilation import is_worthwhile, open_compiler
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.text.cache import TextCache
from filmgate.pipeline.text.encode import Prompt, encode_text
from filmgate.pipeline.transfer.streams import open_streams
from filmgate.settings import PipelineSettings

CPU_LATENTS_PER_CHUNK = 2
"""On a CPU, convolutions of one latent frame at a time take twice as long; more than two gain little."""


@dataclass(frozen=True, slots=True)
class RenderReport:
    """A finished clip, what each stage took and the most memory the GPU held."""

    clip: ClipReport
    request: ClipRequest
    stage_seconds: dict[str, float]
    is_text_cached: bool
    peak_device_bytes: int | None
    peak_host_bytes: int


class Renderer:
    """Renders clips on one loaded model, one at a time; buffers are kept between clips of the same shape.

    `is_reused` promises many clips: what costs seconds once and pays with every clip is then worth it.
    """

    def __init__(self, model: VideoModel, settings: PipelineSettings, *, is_reused: bool = False) -> None:
        self._model = model
        self._is_reused = is_reused
        self._compiler = open_compiler(model.pipe, settings)
        self._texts = TextCache(settings.text_cache_bytes)
        self._is_text_cached = False
        self._settings = settings
        self._device = model.placement.device
        check_choice(model.pipe.vae, settings.decoder, self._device)
        self._streams = open_streams(self._device)
        self._writer: tuple[float, ClipWriter] | None = None
        self._seconds: dict[str, float] = {}

    def render(
        self, prompt: Prompt, request: ClipRequest, path: Path | None, outputs: ClipOutputs, control: Control
    ) -> RenderReport:
        """One clip from prompt to file; raises a RunError and leaves nothing behind when it cannot."""
        if path is not None:
            check_target(path)
        denoised = self.denoise(prompt, request, control)
        return self.finish(denoised, request, path, outputs, control)

    def denoise(self, prompt: Prompt, request: ClipRequest, control: Control) -> DenoisedClip:
        """The costly half: from prompt to latents, which are worth a checkpoint."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._seconds = {}
        control.report(Stage.TEXT, 0, 1)
        with self._timed(Stage.TEXT):
            text = encode_text(self._model, prompt, self._texts)
        self._is_text_cached = text.is_cached
        control.report(Stage.TEXT, 1, 1)
        control.check()
        with self._timed(Stage.DENOISE), _explained():
            work = partial(denoise, self._model, text, request, control)
            is_compiled = is_worthwhile(
                self._model, self._settings, request.forwards, is_reused=self._is_reused
            )
            return self._compiler.run(work, is_worthwhile=is_compiled)

    def finish(
        self,
        denoised: DenoisedClip,
        request: ClipRequest,
        path: Path | None,
        outputs: ClipOutputs,
        control: Control,
    ) -> RenderReport:
        """The other half: from latents, fresh or from a checkpoint, to the finished clip."""
        with self._timed(Stage.DECODE):
            clip = self._writer_for(request.fps).write(denoised.latents, path, outputs, control)
        peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None
        report = RenderReport(clip, request, self._seconds, self._is_text_cached, peak, peak_host_bytes())
        self._seconds, self._is_text_cached = {}, False  # the next clip may start from a checkpoint
        return report

    def _writer_for(self, fps: int) -> ClipWriter:
        if self._writer is None or self._writer[0] != fps:
            s = self._settings
            threads = threads_up_to(s.encoder_threads)
            options = EncodeOptions(fps, s.codec, s.encoder, s.preset, s.crf, threads)
            together = CPU_LATENTS_PER_CHUNK if self._device.type == "cpu" else 1
            slots = (s.device_slots, s.host_slots)
            vae = self._model.pipe.vae
            writer = ClipWriter(vae, options, slots, latents_per_chunk=together, decoder=s.decoder)
            self._writer = (fps, writer)
        return self._writer[1]

    @contextmanager
    def _timed(self, stage: Stage) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._streams.drain()  # a timer without a drain measures launches, not work
        self._seconds[stage] = time.perf_counter() - started


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            "the denoiser does not fit into GPU memory; set pipeline.offload to model or layers, "
            "or lower --size or --seconds"
        ) from exc


def peak_host_bytes() -> int:
    """The most memory this process has held, page-locked buffers included."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
