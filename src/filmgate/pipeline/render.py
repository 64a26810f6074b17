"""The whole pipeline for one clip: text -> denoise -> decode, transfer and encode at the same time."""

import resource
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from filmgate.errors import UsageError
from filmgate.jobs import Stage
from filmgate.pipeline.clip_writer import ClipOutputs, ClipReport, ClipWriter
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode import check_choice, open_decoder
from filmgate.pipeline.denoise.acceleration import Denoiser
from filmgate.pipeline.denoise.denoise import DenoisedClip, denoise
from filmgate.pipeline.encode.clip_file import check_target
from filmgate.pipeline.encode.encoder import EncodeOptions, check_encoder, threads_up_to
from filmgate.pipeline.loading.adapters import AdapterCache, AdapterSwitch
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.requests import ClipRequest
from filmgate.pipeline.text import TextCache, TextEmbedding, encode_text
from filmgate.pipeline.transfer.streams import open_streams
from filmgate.pipeline.wipe import wiping
from filmgate.settings import PipelineSettings

CPU_LATENTS_PER_CHUNK = 2
"""On a CPU, chunks of one latent frame take twice as long to decode; more than two gain little (ADR 0034)."""


@dataclass(frozen=True, slots=True)
class RenderReport:
    """A finished clip, the seconds of each stage and the peak memory.

    A clip that started from a checkpoint has only the seconds of the decode stage.
    """

    clip: ClipReport
    request: ClipRequest
    stage_seconds: Mapping[str, float]
    is_text_cached: bool
    peak_device_bytes: int | None
    peak_host_bytes: int


class Renderer:
    """Renders clips on one loaded model; keeps buffers between clips of the same shape.

    One clip may be prepared (`queue_denoising`, up to its first pass) while another is decoded (`finish`).

    `is_reused` means that this process renders many clips, so one-time costs such as compiling pay off. They
    do not for `render`, which renders a single clip: for the command line, or the canary.
    """

    def __init__(
        self,
        model: VideoModel,
        settings: PipelineSettings,
        *,
        is_reused: bool = False,
        adapters: AdapterCache | None = None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._device = model.placement.device
        check_choice(model.pipe.vae, settings.decoder, self._device)
        check_encoder(settings.codec, settings.encoder, settings.pixel_format)
        self._denoiser = Denoiser(model, settings, is_reused=is_reused)
        self._texts = TextCache(settings.text_cache_bytes)
        self._adapters = AdapterSwitch(model, adapters or AdapterCache(_no_adapter, 0))
        self._streams = open_streams(self._device)
        self._threads = threads_up_to(settings.encoder_threads)
        self._writer: tuple[EncodeOptions, ClipWriter] | None = None
        self._has_chosen_kernels = False

    def render(
        self, request: ClipRequest, path: Path | None, outputs: ClipOutputs, control: Control
    ) -> RenderReport:
        """Render a single clip to `path`, or into memory. A RunError leaves no file behind."""
        if path is not None:
            check_target(path)
        denoised = self.denoise(request, control, is_single=True)
        return self.finish(denoised, request, path, outputs, control)

    def denoise(self, request: ClipRequest, control: Control, *, is_single: bool = False) -> DenoisedClip:
        """The first two stages, from a prompt to latents that a checkpoint can store."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        started = time.perf_counter()
        denoised = self.queue_denoising(request, control, is_single=is_single)
        denoised.wait()
        text_seconds = denoised.stage_seconds[Stage.TEXT]
        denoise_seconds = time.perf_counter() - started - text_seconds
        return replace(denoised, stage_seconds={Stage.TEXT: text_seconds, Stage.DENOISE: denoise_seconds})

    def queue_denoising(
        self, request: ClipRequest, control: Control, *, is_single: bool = False
    ) -> DenoisedClip:
        """Like `denoise`, but does not wait for the last steps: decode can be queued behind them.

        Everything before the first pass runs while the device still works on the previous clip.
        """
        self._choose_kernels(control)
        started = time.perf_counter()
        with self._streams.beside_compute() if self.can_prepare else nullcontext():
            control.prepare_device()
            text = self._encode_text(request, control)
            encoded = time.perf_counter()
            denoised = self._run_denoiser(text, request, control, is_single=is_single)
        return replace(denoised, stage_seconds={Stage.TEXT: encoded - started})

    def finish(
        self,
        denoised: DenoisedClip,
        request: ClipRequest,
        path: Path | None,
        outputs: ClipOutputs,
        control: Control,
    ) -> RenderReport:
        """The last three stages: from latents, new or of a checkpoint, to the finished clip."""
        control.enter_device()
        outputs = replace(
            outputs,
            scaled_to=request.scaled_to,
            owner=request.owner,
            dropped_frames=self._model.family.extra_frames(self._model.pipe),
        )
        clip = self._writer_for(request).write(denoised.latents, path, outputs, control)
        seconds = {**denoised.stage_seconds, Stage.DECODE: clip.seconds}
        peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else None
        return RenderReport(clip, request, seconds, denoised.is_text_cached, peak, peak_host_bytes())

    def use_adapters(self, lora: str | None) -> None:
        """Add exactly these adapters to the weights; without any, the weights are those of the model."""
        with self._streams.on_compute():  # the previous clip may still use the weights
            self._adapters.switch(lora)

    @property
    def can_prepare(self) -> bool:
        """Whether a clip may be prepared while another is decoded: offloaded models take turns on the GPU."""
        return self._model.placement.offload is Offload.NONE

    def _choose_kernels(self, control: Control) -> None:
        """Decide before the first clip. Trials time both choices, so the previous clip must have left."""
        if self._has_chosen_kernels or self._device.type != "cuda":
            return
        control.enter_device()
        self._denoiser.decide()
        if self.can_prepare:  # an offloaded VAE is tried when it is on the GPU
            open_decoder(self._model.pipe.vae, choice=self._settings.decoder)
        self._has_chosen_kernels = self._denoiser.is_decided

    def _encode_text(self, request: ClipRequest, control: Control) -> TextEmbedding:
        control.report(Stage.TEXT, 0, 1)
        text = encode_text(self._model, request, self._texts)
        if not self._settings.text_cache_bytes:
            # Otherwise the copy to or from the cache has waited.
            self._streams.mark_current().wait_on_host()
        control.report(Stage.TEXT, 1, 1)
        control.check()
        return text

    def _run_denoiser(
        self, text: TextEmbedding, request: ClipRequest, control: Control, *, is_single: bool = False
    ) -> DenoisedClip:
        self.use_adapters(request.lora)
        work = partial(denoise, self._model, text, request, control, self._streams)
        with wiping(text.arguments):
            return self._denoiser.run(work, is_single=is_single)

    def _writer_for(self, request: ClipRequest) -> ClipWriter:
        s = self._settings
        pixel_format = request.pixel_format or s.pixel_format
        options = EncodeOptions(request.fps, s.codec, s.encoder, s.preset, s.crf, self._threads, pixel_format)
        if self._writer is None or self._writer[0] != options:
            together = CPU_LATENTS_PER_CHUNK if self._device.type == "cpu" else 1
            slots = (s.device_slots, s.host_slots)
            vae = self._model.pipe.vae
            writer = ClipWriter(vae, options, slots, latents_per_chunk=together, decoder=s.decoder)
            self._writer = (options, writer)
        return self._writer[1]


def _no_adapter(name: str) -> list[Path]:
    raise UsageError(f"no adapter is named {name[:60]!r}; set models.adapters_file", option="lora")


def peak_host_bytes() -> int:
    """The peak memory of this process, including page-locked buffers."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
