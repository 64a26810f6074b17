"""The whole pipeline for one clip: text -> denoise -> decode || copy || encode, each stage timed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from filmgate.errors import OutOfMemory
from filmgate.pipeline.clip import check_target
from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.denoise import ClipRequest, DenoisedClip, denoise
from filmgate.pipeline.encode import EncodeOptions
from filmgate.pipeline.ending import ClipReport, Delivery, Ending
from filmgate.pipeline.models import VideoModel
from filmgate.pipeline.streams import open_streams
from filmgate.pipeline.text import Prompt, encode_text
from filmgate.settings import PipelineSettings

CPU_LATENTS_PER_CHUNK = 2
"""On a CPU, convolutions of one latent frame at a time take twice as long; more than two gain little."""


@dataclass(frozen=True, slots=True)
class RenderReport:
    """A finished clip, what each stage took and the most memory the GPU held."""

    clip: ClipReport
    request: ClipRequest
    stage_seconds: dict[str, float]
    peak_device_bytes: int | None
    peak_host_bytes: int


class Renderer:
    """Renders clips on one loaded model, one at a time; buffers are kept between clips of the same shape."""

    def __init__(self, model: VideoModel, settings: PipelineSettings) -> None:
        self._model = model
        self._settings = settings
        self._device = model.placement.device
        self._streams = open_streams(self._device)
        self._ending: tuple[float, Ending] | None = None
        self._seconds: dict[str, float] = {}

    def render(
        self, prompt: Prompt, request: ClipRequest, path: Path | None, delivery: Delivery, control: Control
    ) -> RenderReport:
        """One clip from prompt to file; raises a RunError and leaves nothing behind when it cannot."""
        if path is not None:
            check_target(path)
        denoised = self.denoise(prompt, request, control)
        return self.finish(denoised, request, path, delivery, control)

    def denoise(self, prompt: Prompt, request: ClipRequest, control: Control) -> DenoisedClip:
        """The costly half: from prompt to latents, which are worth a checkpoint."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        self._seconds = {}
        control.report(Stage.TEXT, 0, 1)
        with self._timed(Stage.TEXT):
            text = encode_text(self._model, prompt)
        control.report(Stage.TEXT, 1, 1)
        control.check()
        with self._timed(Stage.DENOISE), _explained():
            return denoise(self._model, text, request, control)

    def finish(
        self,
        denoised: DenoisedClip,
        request: ClipRequest,
        path: Path | None,
        delivery: Delivery,
        control: Control,
    ) -> RenderReport:
        """The other half: from latents, fresh or from a checkpoint, to the finished clip."""
        with self._timed(Stage.DECODE):
            clip = self._ending_for(request.fps).write(denoised.latents, path, delivery, control)
        peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None
        return RenderReport(clip, request, self._seconds, peak, peak_host_bytes())

    def _ending_for(self, fps: int) -> Ending:
        if self._ending is None or self._ending[0] != fps:
            s = self._settings
            options = EncodeOptions(fps=fps, codec=s.codec, encoder=s.encoder, preset=s.preset, crf=s.crf)
            together = CPU_LATENTS_PER_CHUNK if self._device.type == "cpu" else 1
            slots = (s.device_slots, s.host_slots)
            vae = self._model.pipe.vae
            ending = Ending(vae, options, slots, latents_per_chunk=together, decoder=s.decoder)
            self._ending = (fps, ending)
        return self._ending[1]

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
