"""From prompt to file three ways: diffusers as people write it, `filmgate generate`, and the service.

Same model, steps, frames, size, seed and encoder. Each way renders one clip first, which is not counted,
and then `rounds` clips in turns; the median is reported. Loading the model is reported on its own, because
the service loads it once. `stages` says which part of a clip is denoising, which Filmgate leaves to the
model, and which is decoding and encoding, which Filmgate overlaps.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.report import Figures, JsonFlag, make_report, print_report, run
from tests.server_process import ServerProcess

PROMPT = "a red ball bounces on the grass"
SEED = 7


@dataclass(frozen=True, slots=True)
class Plan:
    """The clip that is rendered each way."""

    model: str = "flipbook"
    frames: int = 33
    steps: int = 10
    width: int = 256
    height: int = 256
    rounds: int = 3

    @property
    def size(self) -> str:
        return f"{self.width}x{self.height}"


DEFAULT = Plan()
Render = Callable[[Path], dict[str, float]]


def main(
    model: Annotated[str, typer.Option(help="A model that `filmgate generate` renders.")] = DEFAULT.model,
    frames: Annotated[int, typer.Option(min=1)] = DEFAULT.frames,
    steps: Annotated[int, typer.Option(min=1)] = DEFAULT.steps,
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT")] = DEFAULT.size,
    rounds: Annotated[
        int, typer.Option(min=1, help="Counted clips; the median is reported.")
    ] = DEFAULT.rounds,
    is_json: JsonFlag = False,
) -> None:
    """Render the same clip with diffusers, with `filmgate generate` and with the service, in turns."""
    width, _, height = size.partition("x")
    plan = Plan(model, frames, steps, int(width), int(height), rounds)
    results, ratios = measure(plan)
    print_report(make_report("end_to_end", asdict(plan), results, ratios), is_json=is_json)


def measure(plan: Plan) -> tuple[Figures, Figures]:
    """Seconds of each way, and their ratios to diffusers."""
    seconds: dict[str, list[float]] = {"diffusers": [], "generate": [], "service": []}
    stages: dict[str, float] = {}
    with TemporaryDirectory() as text, service(Path(text), plan) as create:
        folder = Path(text)
        load_diffusers, plain = timed(lambda: open_diffusers(plan))
        load_generate, generate = timed(lambda: open_generate(plan))
        ways: dict[str, Render] = {"diffusers": plain, "generate": generate, "service": create}
        for number in range(plan.rounds + 1):
            for name, render in ways.items():
                took, report = timed(lambda render=render: render(folder / "clip.mp4"))  # type: ignore[misc]
                if number:
                    seconds[name].append(took)
                    stages = report if name == "generate" else stages
    medians = {name: round(median(values), 3) for name, values in seconds.items()}
    results = {
        "seconds": medians,
        "load_seconds": {"diffusers": round(load_diffusers, 3), "generate": round(load_generate, 3)},
        "stages": {name: round(value, 3) for name, value in stages.items()},
    }
    ratios = {f"{name}_to_diffusers": round(medians[name] / medians["diffusers"], 3) for name in seconds}
    return results, ratios


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result


def open_diffusers(plan: Plan) -> Render:
    """The usual script: the pipeline to the end, all frames as an array, then the encoder."""
    import torch
    from diffusers import DiffusionPipeline

    from filmgate.models.names import SHIPPED, shipped_folder

    source = str(shipped_folder(plan.model)) if plan.model in SHIPPED else plan.model
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    pipe = DiffusionPipeline.from_pretrained(source, dtype=dtype).to(device)
    pipe.set_progress_bar_config(disable=True)

    def render(path: Path) -> dict[str, float]:
        shape = {"num_frames": plan.frames, "width": plan.width, "height": plan.height}
        generator = torch.Generator(device).manual_seed(SEED)
        asked = {"num_inference_steps": plan.steps, "guidance_scale": 1.0, "generator": generator}
        frames = pipe(PROMPT, output_type="np", **shape, **asked).frames[0]
        write_frames(frames, path)
        return {}

    return render


def write_frames(frames: Any, path: Path) -> None:
    """What `export_to_video` does, with the encoder settings of Filmgate."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=16, options={"preset": "veryfast", "crf": "18"})
        stream.width, stream.height, stream.pix_fmt = frames.shape[2], frames.shape[1], "yuv420p"
        for frame in (frames * 255).round().astype("uint8"):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def open_generate(plan: Plan) -> Render:
    """`filmgate generate` in this process, with its model loaded."""
    from filmgate.jobs import Size
    from filmgate.models.names import name_model
    from filmgate.models.requests import VideoRequest
    from filmgate.pipeline.generate import LocalModel
    from filmgate.settings import load_settings

    loaded = LocalModel(name_model(plan.model), load_settings())
    request = VideoRequest(
        PROMPT,
        loaded.name,
        size=Size(plan.width, plan.height),
        frames=plan.frames,
        steps=plan.steps,
        seed=SEED,
    )

    def render(path: Path) -> dict[str, float]:
        return dict(loaded.render(request, path).stage_seconds)

    return render


@contextmanager
def service(folder: Path, plan: Plan) -> Iterator[Render]:
    """A server and its worker; a clip is created over HTTP, waited for by events, and downloaded."""
    from filmgate.client import Filmgate

    process = ServerProcess(folder, "--model", plan.model, model=plan.model)
    try:
        with Filmgate(process.url, process.key) as client:

            def render(path: Path) -> dict[str, float]:
                seconds = (plan.frames - 1) / 16
                video = client.create(PROMPT, size=plan.size, seconds=seconds, steps=plan.steps, seed=SEED)
                for _ in client.events(video):
                    pass
                client.download(client.wait(video), path)
                return {}

            yield render
    finally:
        process.stop()


if __name__ == "__main__":
    run(main)
