"""From prompt to file three ways: diffusers as people write it, `filmgate generate`, and the service.

    python -m benchmarks.bench_end_to_end --model FOLDER --device cuda --size 832x480 --frames 81 --steps 8

Same model, steps, frames, size, seeds and prompts. Each way renders one clip that is not counted and then
`rounds` clips; the median is reported. On a CPU, which other work may share, the ways take turns; on a GPU
they follow each other, so that one copy of the model is in its memory at a time. No prompt is rendered twice
by one way, so the cache of prompts does not help. `first_clip` counts from nothing loaded to the first file:
loading, and for the service its start and compiling too.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.report import Figures, JsonFlag, print_report, run

if TYPE_CHECKING:
    from filmgate.client import Filmgate, Video
    from filmgate.load_test.server import Server

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "orange", "purple")
FPS = 16
STAGES = ("text", "denoise", "decode", "copy", "encode")


@dataclass(frozen=True, slots=True)
class Plan:
    """The clips that are rendered each way."""

    model: str = "flipbook"
    frames: int = 33
    steps: int = 10
    width: int = 256
    height: int = 256
    guidance: float = 1.0
    rounds: int = 3
    device: str = "cpu"

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


DEFAULT = Plan()
Seconds = Mapping[str, float]
Render = Callable[[int, Path], Seconds]
Way = Callable[[Plan, Path], AbstractContextManager[Render]]


def prompt_of(number: int) -> str:
    return f"a {COLOURS[number]} ball bounces on the grass"


def main(  # noqa: PLR0913, PLR0917 - one argument per flag
    model: Annotated[str, typer.Option(help="A model that `filmgate generate` renders.")] = DEFAULT.model,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    frames: Annotated[int, typer.Option(min=1)] = DEFAULT.frames,
    steps: Annotated[int, typer.Option(min=1)] = DEFAULT.steps,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT")] = DEFAULT.size,
    guidance: Annotated[float, typer.Option(help="1 for a distilled model: one pass per step.")] = 1.0,
    rounds: Annotated[
        int, typer.Option(min=1, max=len(COLOURS) - 1, help="Counted clips; the median is reported.")
    ] = DEFAULT.rounds,
    is_json: JsonFlag = False,
) -> None:
    """Render the same clips with diffusers, with `filmgate generate` and with the service."""
    from filmgate.jobs import Size

    shape = Size.parse(size)
    plan = Plan(model, frames, steps, shape.width, shape.height, guidance, rounds, choose_device(device))
    results, ratios = measure(plan)
    print_report("end_to_end", asdict(plan), results, ratios, is_json=is_json)
    if not is_json:
        typer.echo(f"\n{table(results, ratios)}")


def choose_device(text: str) -> str:
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if text == "auto" else text


def measure(plan: Plan) -> tuple[Figures, Figures]:
    """Seconds of each way, and their ratios to diffusers."""
    is_alone = plan.device != "cpu"
    groups = [[name] for name in WAYS] if is_alone else [list(WAYS)]
    clips: dict[str, list[Seconds]] = {name: [] for name in WAYS}
    for group in groups:
        with TemporaryDirectory() as folder:
            render_in_turns(group, plan, Path(folder), clips)
        free_device()
    totals = {name: _median(name_clips[1:], "total") for name, name_clips in clips.items()}
    results = {
        "encoder_of_diffusers": find_encoder(),
        "seconds": totals,
        "stages": {
            name: {stage: _median(found[1:], stage) for stage in STAGES if stage in found[-1]}
            for name, found in clips.items()
        },
        "first_clip_seconds": {name: round(found[0]["total"], 3) for name, found in clips.items()},
    }
    return results, {f"{name}_to_diffusers": round(totals[name] / totals["diffusers"], 3) for name in totals}


def _median(clips: Sequence[Seconds], name: str) -> float:
    return round(median(clip[name] for clip in clips), 3)


def render_in_turns(names: Sequence[str], plan: Plan, folder: Path, clips: dict[str, list[Seconds]]) -> None:
    """Open the ways, render all clips in turns and close them. The first clip includes the opening."""
    with ExitStack() as stack:
        opened: dict[str, tuple[float, Render]] = {}
        for name in names:
            began = time.perf_counter()
            render = stack.enter_context(WAYS[name](plan, folder))
            opened[name] = time.perf_counter() - began, render
        for number in range(plan.rounds + 1):
            for name, (opening, render) in opened.items():
                began = time.perf_counter()
                stages = render(number, folder / "clip.mp4")
                took = time.perf_counter() - began + (0 if number else opening)
                clips[name].append({**stages, "total": took})


@contextmanager
def diffusers_way(plan: Plan, _folder: Path) -> Iterator[Render]:
    """The usual script: the pipeline to its end, all frames as an array, then the encoder."""
    import torch
    from diffusers import DiffusionPipeline

    from filmgate.models.names import SHIPPED, shipped_folder

    source = str(shipped_folder(plan.model)) if plan.model in SHIPPED else plan.model
    dtype = torch.float32 if plan.device == "cpu" else torch.bfloat16
    pipe = DiffusionPipeline.from_pretrained(source, dtype=dtype).to(plan.device)
    pipe.set_progress_bar_config(disable=True)
    encoder, seconds = find_encoder(), dict[str, float]()
    time_calls(pipe, "encode_prompt", seconds, "text")
    time_calls(pipe.vae, "decode", seconds, "decode")
    time_calls(pipe.video_processor, "postprocess_video", seconds, "copy")

    def render(number: int, path: Path) -> Seconds:
        seconds.clear()
        shape = {"num_frames": plan.frames, "width": plan.width, "height": plan.height}
        generator = torch.Generator(plan.device).manual_seed(number)
        asked = {"num_inference_steps": plan.steps, "guidance_scale": plan.guidance, "generator": generator}
        began = time.perf_counter()
        frames = pipe(prompt_of(number), output_type="np", **shape, **asked).frames[0]
        rendered = time.perf_counter()
        write_frames(frames, path, encoder)
        denoise = rendered - began - sum(seconds.values())
        return {**seconds, "denoise": denoise, "encode": time.perf_counter() - rendered}

    yield render


def time_calls(owner: Any, name: str, seconds: dict[str, float], stage: str) -> None:
    """Add the seconds of every call of this method, with the work of the GPU, to `seconds[stage]`."""
    method = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        wait_for_device()
        began = time.perf_counter()
        result = method(*arguments, **options)
        wait_for_device()
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - began
        return result

    setattr(owner, name, timed)


def wait_for_device() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_device() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def find_encoder() -> str:
    """What `export_to_video` of diffusers can use here; PyAV where none of its libraries works."""
    from diffusers.utils.import_utils import is_imageio_available, is_opencv_available

    if is_imageio_available() and find_spec("imageio_ffmpeg"):
        with suppress(RuntimeError):  # the package is there, and no ffmpeg
            import_module("imageio_ffmpeg").get_ffmpeg_exe()
            return "imageio"
    return "opencv" if is_opencv_available() and not is_imageio_available() else "pyav"


def write_frames(frames: Any, path: Path, encoder: str) -> None:
    """`export_to_video`; without its libraries, the same loop with PyAV and Filmgate's encoder settings."""
    if encoder != "pyav":
        from diffusers.utils.export_utils import export_to_video

        export_to_video(frames, str(path), fps=FPS)
        return
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "veryfast", "crf": "18"})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        for frame in (frames * 255).round().astype("uint8"):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


@contextmanager
def generate_way(plan: Plan, _folder: Path) -> Iterator[Render]:
    """`filmgate generate` in this process, with its model loaded."""
    from filmgate.jobs import Size
    from filmgate.models.names import name_model
    from filmgate.models.requests import VideoRequest
    from filmgate.pipeline.generate import LocalModel
    from filmgate.settings import load_settings, with_values

    settings = with_values(load_settings(), {"pipeline.device": plan.device})

    def render(number: int, path: Path) -> Seconds:
        request = VideoRequest(
            prompt_of(number),
            loaded.name,
            size=Size(plan.width, plan.height),
            frames=plan.frames,
            steps=plan.steps,
            guidance=plan.guidance,
            seed=number,
        )
        return dict(loaded.render(request, path).stage_seconds)

    with LocalModel(name_model(plan.model), settings) as loaded:
        yield render


@contextmanager
def service_way(plan: Plan, folder: Path) -> Iterator[Render]:
    """A server and its worker; a clip is created over HTTP, waited for by events, and downloaded."""
    from filmgate.client import Filmgate
    from filmgate.load_test.server import started_server

    environ = {"FILMGATE_PIPELINE__DEVICE": plan.device}
    with (
        started_server([plan.model], folder, environ) as server,
        Filmgate(server.url, server.keys[0]) as client,
    ):

        def render(number: int, path: Path) -> Seconds:
            asked = {"steps": plan.steps, "guidance": plan.guidance, "seed": number}
            seconds = (plan.frames - 1) / FPS
            options = {"size": plan.size, "seconds": seconds, **asked}
            video = create_when_loaded(client, prompt_of(number), options)
            for _ in client.events(video):
                pass
            client.download(client.wait(video), path)
            return read_stages(server, video)

        yield render


def create_when_loaded(client: "Filmgate", prompt: str, options: Mapping[str, Any]) -> "Video":
    """Create the video; while the worker loads the model for the first time, try again every half second."""
    from filmgate.client.errors import RequestFailed
    from filmgate.load_test.server import START_SECONDS

    ends = time.monotonic() + START_SECONDS
    while True:
        try:
            return client.create(prompt, **options)
        except RequestFailed as exc:
            if exc.reason != "model_loading" or time.monotonic() > ends:
                raise
            time.sleep(0.5)


def read_stages(server: "Server", video: "Video") -> Seconds:
    """What the worker measured, from the server's database."""
    (job,) = server.read_jobs([(0, video.id)])
    assert job.measured is not None
    return {stage: getattr(job.measured, stage) for stage in ("text", "denoise", "decode")}


WAYS: dict[str, Way] = {"diffusers": diffusers_way, "generate": generate_way, "service": service_way}


def table(results: Figures, ratios: Figures) -> str:
    """The result as a Markdown table."""
    lines = [
        "| way | prompt to file, s | relative | text | denoise | decode, copy, encode | other |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, total in results["seconds"].items():
        stages = results["stages"][name]
        ours = sum(stages.get(stage, 0.0) for stage in ("decode", "copy", "encode"))
        other = total - stages["text"] - stages["denoise"] - ours
        values = (total, ratios[f"{name}_to_diffusers"], stages["text"], stages["denoise"], ours, other)
        lines.append(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
