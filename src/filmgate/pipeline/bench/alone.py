"""Seconds that the device needs for one clip and nothing else: its denoising steps and its decode.

`filmgate bench service` runs it as a child process, so that its memory is free before the server starts.
Reads a JSON list of requests from stdin and prints a JSON list of results.
"""

import json
import sys
import time
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from filmgate.errors import FilmgateError
from filmgate.jobs import Size
from filmgate.models.requests import VideoRequest, check_request
from filmgate.pipeline.bench.alone_result import Alone
from filmgate.pipeline.clip_writer import prepare
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode.base import decode_frames
from filmgate.pipeline.loading.loader import VideoModel, load_model
from filmgate.pipeline.loading.memory import find_gpu_uuid, name_device, release
from filmgate.pipeline.render import CPU_LATENTS_PER_CHUNK, Renderer
from filmgate.pipeline.requests import ClipRequest, to_clip_request
from filmgate.pipeline.transfer.streams import Streams, open_streams
from filmgate.settings import Settings, load_settings


def measure_alone(location: str, options: dict[str, Any], rounds: int, settings: Settings) -> Alone:
    """Render one kind of clip without copies, encoder and files, after a warm-up."""
    model = load_model(location, settings.pipeline)
    try:
        size = Size.parse(options["size"]) if "size" in options else None
        named = {name: options[name] for name in ("steps", "guidance", "quality") if name in options}
        seconds = float(options["seconds"]) if "seconds" in options else None
        asked = VideoRequest("a red ball rolls over the grass", size=size, seconds=seconds, seed=1, **named)
        codec = settings.pipeline.codec
        request = to_clip_request(check_request(asked, model.name, model.limits, settings.admission, codec))
        times = _measure(model, request, rounds, settings)
    finally:
        release(model.pipe, model.placement.device)
    shape = Size(request.width, request.height)
    name = name_device(settings.pipeline)
    return Alone(
        name,
        find_gpu_uuid(settings.pipeline),
        str(shape),
        request.frames,
        request.fps,
        request.steps,
        request.guidance,
        request.quality,
        *times,
    )


def _measure(model: VideoModel, request: ClipRequest, rounds: int, settings: Settings) -> tuple[float, float]:
    renderer = Renderer(model, settings.pipeline, is_reused=True)
    times = [_run_once(model, renderer, request, settings) for _ in range(rounds + 1)][1:]
    denoise, decode = zip(*times, strict=True)
    return median(denoise), median(decode)


class _FirstPass(Control):
    """The time at which denoising starts, on an idle device."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams
        self.at = 0.0

    def enter_device(self) -> None:
        self._streams.drain()
        self.at = time.perf_counter()


def _run_once(
    model: VideoModel, renderer: Renderer, request: ClipRequest, settings: Settings
) -> tuple[float, float]:
    device = model.placement.device
    streams = open_streams(device)
    control = _FirstPass(streams)
    denoised = renderer.denoise(request, control)
    denoised_at = time.perf_counter()
    together = CPU_LATENTS_PER_CHUNK if device.type == "cpu" else 1
    decoder, latents = prepare(model.pipe.vae, denoised.latents, together, settings.pipeline.decoder)
    with torch.inference_mode():
        for _ in decode_frames(decoder, latents):
            pass
    streams.drain()
    return denoised_at - control.at, time.perf_counter() - denoised_at


def main() -> None:
    asked = json.load(sys.stdin)
    settings = load_settings()
    rounds = asked["rounds"]
    try:
        found = [
            measure_alone(each["location"], each["options"], rounds, settings) for each in asked["clips"]
        ]
    except FilmgateError as exc:
        sys.exit(str(exc))  # the parent prints it
    json.dump([asdict(each) for each in found], sys.stdout)


if __name__ == "__main__":
    main()
