"""`filmgate bench decode`: latents to MP4 in several variants, with the decoder alone as the lower bound."""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor

from filmgate.jobs import Size
from filmgate.pipeline.bench.measure import GpuUse, HostMemory, profile_gpu
from filmgate.pipeline.bench.vaes import VAES, build_vae, draw_latents, recipe_like, recipe_of
from filmgate.pipeline.clip_writer import ClipReport, ClipWriter, Phases, prepare
from filmgate.pipeline.decode import DecoderChoice, is_fast_decoder, open_decoder
from filmgate.pipeline.decode.base import Vae, decode_frames
from filmgate.pipeline.encode.clip_file import ClipFile
from filmgate.pipeline.encode.encoder import ClipEncoder, EncodeOptions, threads_up_to
from filmgate.pipeline.loading.loader import load_model
from filmgate.pipeline.loading.memory import choose_device, choose_dtype
from filmgate.pipeline.transfer.colour import Yuv420
from filmgate.pipeline.transfer.loops import transfer_overlapped, transfer_plain
from filmgate.pipeline.transfer.streams import Span, Timeline, open_streams
from filmgate.settings import PipelineSettings

DIFFUSERS, PLAIN, OVERLAPPED, DECODE_ALONE = "diffusers", "plain", "overlapped", "decode_alone"
EXACT, EXACT_ALONE = "exact", "exact_alone"  # overlapped, and alone, with the exact decoder
VAE_ALONE = "vae_alone"  # `vae.decode` of the entire clip, in the VAE's own layers
# The most important first: a run may be interrupted.
VARIANTS = (OVERLAPPED, DECODE_ALONE, EXACT, EXACT_ALONE, PLAIN, VAE_ALONE, DIFFUSERS)
LOOPS = (OVERLAPPED, PLAIN)


@dataclass(frozen=True, slots=True)
class Measured:
    """One variant: median seconds and peak memory."""

    seconds: float
    all_seconds: tuple[float, ...]
    first_fragment_seconds: float | None
    phases: Phases | None
    peak_device_bytes: int | None
    peak_host_bytes: int
    gpu: GpuUse | None


@dataclass(frozen=True, slots=True)
class Pair:
    """Both loops on the same latents: their timelines, and whether they wrote the same bytes."""

    spans: dict[str, list[Span]]
    is_equal: bool


class DecodeBench:
    """Measures the variants on one VAE and one clip shape, with new random latents for every timed round."""

    def __init__(
        self,
        vae: Vae,
        draw: Callable[[], Tensor],
        options: EncodeOptions,
        rounds: int,
        decoder: DecoderChoice = "auto",
    ) -> None:
        self.vae = vae
        self._decoder: DecoderChoice = decoder
        self.draw = draw
        self._options = options
        self._rounds = rounds
        self._is_cuda = vae.device.type == "cuda"
        self._is_warm = False  # running a loop also warms up the decoder alone
        self.is_fast = is_fast_decoder(open_decoder(vae, choice=decoder))
        self._writers = {
            EXACT: ClipWriter(vae, options, loop=transfer_overlapped, decoder="exact"),
            PLAIN: ClipWriter(vae, options, loop=transfer_plain, decoder=decoder),
            OVERLAPPED: ClipWriter(vae, options, loop=transfer_overlapped, decoder=decoder),
        }

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants to compare, with the exact decoder only if `decoder` chooses the fast one."""
        return VARIANTS if self.is_fast else tuple(v for v in VARIANTS if v not in (EXACT, EXACT_ALONE))

    def measure(self, variant: str) -> Measured:
        """Warm up once, time `rounds` runs, then on a GPU profile the same number of runs of a loop.

        A single round measures memory only: it is neither warmed up nor profiled.
        """
        is_timed = self._rounds > 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "clip.mp4"
            if is_timed and not (variant in (DECODE_ALONE, EXACT_ALONE) and self._is_warm):
                self._run(variant, self.draw(), path)
            self._is_warm |= is_timed and variant in self._writers
            if self._is_cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(self.vae.device)
            with HostMemory() as memory:
                rounds = [self._timed(variant, path) for _ in range(self._rounds)]
            peak = torch.cuda.max_memory_allocated(self.vae.device) if self._is_cuda else None
            latents = self.draw()
            is_profiled = self._is_cuda and is_timed and variant in self._writers
            run = partial(self._run, variant, latents, path)
            gpu = profile_gpu(run, self._rounds) if is_profiled else None
        seconds = tuple(total for total, _ in rounds)
        reports = [report for _, report in rounds if report is not None]
        first = statistics.median(r.first_fragment_seconds for r in reports) if reports else None
        phases = median_phases([r.phases for r in reports]) if reports else None
        return Measured(statistics.median(seconds), seconds, first, phases, peak, memory.peak_bytes, gpu)

    def pair(self) -> Pair:
        """Run each loop once on the same latents, record its timeline and compare the files byte for byte."""
        latents, spans = self.draw(), {}
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: Path(folder) / f"{name}.mp4" for name in LOOPS}
            for name, path in paths.items():
                spans[name] = self._recorded(name, latents, path)
            return Pair(spans, paths[PLAIN].read_bytes() == paths[OVERLAPPED].read_bytes())

    def luma_difference(self) -> float:
        """Mean difference of luma, of 255, between our clip and the one of diffusers.

        Both clips are lossless: a lossy encoder would amplify rounding differences.
        """
        latents = self.draw()
        lossless = replace(self._options, crf=0)
        with tempfile.TemporaryDirectory() as folder:
            ours, diffusers = (Path(folder) / f"{n}.mp4" for n in range(2))
            ClipWriter(self.vae, lossless, loop=transfer_plain, decoder=self._decoder).write(latents, ours)
            write_like_diffusers(self.vae, latents, diffusers, lossless)
            return mean_luma_difference(ours, diffusers)

    def _recorded(self, variant: str, latents: Tensor, path: Path) -> list[Span]:
        timeline = Timeline(open_streams(self.vae.device))
        self._writers[variant].write(latents, path, timeline=timeline)
        return timeline.spans()

    def _timed(self, variant: str, path: Path) -> tuple[float, ClipReport | None]:
        latents = self.draw()
        self._synchronise()
        started = time.perf_counter()
        report = self._run(variant, latents, path)
        self._synchronise()
        return time.perf_counter() - started, report

    def _run(self, variant: str, latents: Tensor, path: Path) -> ClipReport | None:
        if variant in (DECODE_ALONE, EXACT_ALONE):
            choice = "exact" if variant == EXACT_ALONE else self._decoder
            decoder, ready = prepare(self.vae, latents, choice=choice)
            for _ in decode_frames(decoder, ready):
                pass
            return None
        if variant == VAE_ALONE:
            decode_with_vae(self.vae, latents)
            return None
        if variant == DIFFUSERS:
            write_like_diffusers(self.vae, latents, path, self._options)
            return None
        return self._writers[variant].write(latents, path)

    def _synchronise(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize(self.vae.device)


@torch.inference_mode()
def decode_with_vae(vae: Vae, latents: Tensor) -> Tensor:
    """The frames of the entire clip, as diffusers' pipelines decode them."""
    _, ready = prepare(vae, latents, choice="exact")
    video: Tensor = vae.decode(ready, return_dict=False)[0]
    return video


def write_like_diffusers(vae: Vae, latents: Tensor, path: Path, options: EncodeOptions) -> None:
    """The usual diffusers code: decode the clip, copy floats to the host, scale, encode RGB frames."""
    video = decode_with_vae(vae, latents)
    floats = (video / 2 + 0.5).clamp(0, 1)[0].permute(1, 2, 3, 0).cpu().float().numpy()
    frames = (floats * 255).round().astype(np.uint8)
    with closing(ClipFile(path, {})) as clip:
        encoder = ClipEncoder(clip, (frames.shape[2], frames.shape[1]), len(frames), options)
        for rgb in frames:
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            planes = frame.reformat(
                format=Yuv420.ffmpeg_name, dst_colorspace="ITU709", dst_color_range="MPEG"
            )
            encoder.write(planes.to_ndarray()[None])
        encoder.finish()
        clip.publish()


def median_phases(rounds: list[Phases]) -> Phases:
    """The median of each phase."""
    return Phases(**{name: statistics.median(getattr(r, name) for r in rounds) for name in Phases.__slots__})


def mean_luma_difference(one: Path, other: Path) -> float:
    """Mean absolute difference of luma between two clips, of 255."""
    with av.open(str(one)) as a, av.open(str(other)) as b:
        pairs = zip(a.decode(video=0), b.decode(video=0), strict=True)
        differences = [
            np.abs(x.to_ndarray()[: x.height].astype(int) - y.to_ndarray()[: y.height]).mean()
            for x, y in pairs
        ]
    return float(np.mean(differences))


def open_bench(
    name: str, size: str, frames: int, rounds: int, settings: PipelineSettings
) -> tuple[DecodeBench, dict[str, object]]:
    """The benchmark on a VAE with random weights, or on a model's VAE, and the settings to report."""
    device = choose_device(settings.device)
    dtype = choose_dtype(settings.dtype, device)
    width, height = Size.parse(size)
    if name in VAES:
        vae, recipe = build_vae(name, device, dtype), recipe_of(name)
    else:
        model = load_model(name, settings)
        vae, recipe = model.pipe.vae, recipe_like(model.pipe.vae, model.family.compression(model.pipe))
    draw = partial(draw_latents, recipe, (width, height), frames, vae)
    threads = threads_up_to(settings.encoder_threads)
    options = EncodeOptions(preset=settings.preset, crf=settings.crf, encoder="software", threads=threads)
    decoder = open_decoder(vae, choice="exact")
    shape = decoder.shape(decoder.to_vae_latents(draw()))
    about: dict[str, object] = {
        "vae": name,
        "width": shape.width,
        "height": shape.height,
        "frames": shape.frames,
        "dtype": str(dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "encoder": f"x264 {options.preset} crf {options.crf}, {options.threads} threads",
        "decoder": settings.decoder,
        "rounds": rounds,
    }
    return DecodeBench(vae, draw, options, rounds, settings.decoder), about
