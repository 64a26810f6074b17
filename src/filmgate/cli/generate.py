"""`filmgate generate`: renders clips from prompts and reports time and memory."""

import gc
import json
import os
import shutil
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import Data, report_data_folder, settings_with
from filmgate.cli.models import pull_progress
from filmgate.cli.options import AsJson
from filmgate.errors import InvalidField, UsageError, WriteError
from filmgate.jobs import Size
from filmgate.models.requests import Upload, VideoRequest, check_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from filmgate.models.adapters import AdapterRegistry
    from filmgate.models.names import NamedModel
    from filmgate.pipeline.render import RenderReport
    from filmgate.settings import Settings

DEFAULT_MODEL = "flipbook"
_SUFFIXES = (".mp4", ".m4v")

Lora = Annotated[
    list[str] | None,
    typer.Option(
        help="LoRA: a safetensors file, hub id, s3://... or known name, with :SCALE. Repeat it for more."
    ),
]
Steps = Annotated[int | None, typer.Option(help="Denoising steps.")]
Seed = Annotated[int | None, typer.Option(help="The same seed renders the same clip on the same machine.")]
Prompts = Annotated[Path | None, typer.Option(help="File with one prompt per line, instead of PROMPT.")]
Quality = Annotated[
    str | None,
    typer.Option(help="full, balanced or draft. The last two are faster, but change the picture slightly."),
]
PixelFormat = Annotated[
    str | None,
    typer.Option(help="yuv420p, yuv420p10, yuv422p or yuv422p10. Browsers play yuv420p only."),
]


def generate(  # noqa: PLR0913, PLR0917 - one argument per flag of the contract
    prompt: Annotated[str | None, typer.Argument(help="What the clip shows.", show_default=False)] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="MP4 file to write, or - for stdout.")
    ] = Path("clip.mp4"),
    model: Annotated[
        str,
        typer.Option(
            help="A built-in model, a catalog model, a diffusers folder, a hub id or s3://BUCKET/PATH."
        ),
    ] = DEFAULT_MODEL,
    size: Annotated[str | None, typer.Option(help="Size in pixels.  [default: the model's]")] = None,
    seconds: Annotated[float | None, typer.Option(help="Length of the clip in seconds.")] = None,
    frames: Annotated[int | None, typer.Option(help="Length in frames, instead of --seconds.")] = None,
    fps: Annotated[int | None, typer.Option(help="Frames per second.")] = None,
    steps: Steps = None,
    seed: Seed = None,
    guidance: Annotated[float | None, typer.Option(help="How closely the clip follows the prompt.")] = None,
    quality: Quality = None,
    pixel_format: PixelFormat = None,
    lora: Lora = None,
    negative: Annotated[str, typer.Option(help="What the clip should not show.")] = "",
    image: Annotated[Path | None, typer.Option(help="Image to start from.")] = None,
    thumbnail: Annotated[Path | None, typer.Option(help="Write the middle frame to this file too.")] = None,
    spritesheet: Annotated[
        Path | None, typer.Option(help="Write a sheet of sixteen frames to this file too.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "-n", min=1, help="Clips per prompt, as clip-1.mp4, clip-2.mp4, ... Each has the next seed."
        ),
    ] = 1,
    prompts: Prompts = None,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Render a clip from a prompt, or from an image and a prompt."""
    texts = read_prompts(prompt, prompts, has_image=image is not None)
    wanted = VideoRequest(
        texts[0],
        model,
        size=Size.parse(size) if size else None,
        seconds=seconds,
        frames=frames,
        fps=fps,
        steps=steps,
        seed=seed,
        guidance=guidance,
        quality=quality,
        pixel_format=pixel_format,
        negative_prompt=negative or None,
        image=_read_image(image) if image else None,
    )
    batch = Batch(wanted, texts, count, (thumbnail, spritesheet))
    check_output(output, is_single=batch.is_single, is_json=is_json)
    produce(batch, output, settings_with(data), lora or [], is_json=is_json)


@dataclass(frozen=True, slots=True)
class ClipTask:
    """One clip of a batch."""

    request: VideoRequest
    path: Path


@dataclass(frozen=True, slots=True)
class Batch:
    """All clips of one command: `count` per prompt."""

    wanted: VideoRequest
    prompts: list[str]
    count: int
    stills: tuple[Path | None, Path | None]

    def __post_init__(self) -> None:
        if not self.is_single and any(self.stills):
            raise UsageError(
                "stills are written for a single clip only; leave out -n and --prompts, or the stills",
                option="--thumbnail" if self.stills[0] else "--spritesheet",
            )

    @property
    def is_single(self) -> bool:
        return len(self.prompts) * self.count == 1

    def tasks(self, output: Path) -> "Iterator[ClipTask]":
        """The clips, numbered if there are several."""
        for number in range(len(self.prompts) * self.count):
            seed = None if self.wanted.seed is None else self.wanted.seed + number % self.count
            name = output.name if self.is_single else f"{output.stem}-{number + 1}{output.suffix}"
            request = replace(self.wanted, prompt=self.prompts[number // self.count], seed=seed)
            yield ClipTask(request, output.with_name(name) if output.name else output)


def produce(batch: Batch, output: Path, settings: "Settings", loras: list[str], *, is_json: bool) -> None:
    """Render the batch and print the reports."""
    from filmgate.cli.lora import read_adapters
    from filmgate.models.names import check_location, name_model
    from filmgate.models.weights.location import is_remote
    from filmgate.tenants.base import LOCAL_TENANT

    named = name_model(batch.wanted.model or DEFAULT_MODEL)
    check_location(named.location)
    is_piped, model = str(output) == "-", named.name
    adapters, lora = read_adapters(loras, model, settings.models.adapters_file)
    wanted = replace(batch.wanted, model=model, lora=lora)
    batch = replace(batch, wanted=adapters.resolve(wanted, LOCAL_TENANT) if lora else wanted)
    if is_remote(named.location):
        report_data_folder(settings)  # the pulled model stays there
    with TemporaryDirectory(prefix="filmgate-") as folder:
        target = Path(folder) / "clip.mp4" if is_piped else output
        tasks = list(batch.tasks(target))
        warnings = check_before_loading(tasks, settings)
        done = render_all(tasks, named, batch.stills, settings, adapters)
        if is_piped:
            _copy_to_stdout(target)
    if is_json:
        clips = [as_dict(report, model) | {"warnings": warnings} for report in done]
        typer.echo(json.dumps(clips[0] if len(clips) == 1 else {"clips": clips}))
    else:
        places = ["stdout" if is_piped else str(report.clip.path) for report in done]
        texts = [summary(report, model, place) for report, place in zip(done, places, strict=True)]
        typer.echo("\n\n".join(texts), err=is_piped)


def _copy_to_stdout(path: Path) -> None:
    """Raises WriteError when the disk is full or the reader has gone."""
    with path.open("rb") as clip:
        try:
            shutil.copyfileobj(clip, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        except OSError as exc:
            # The interpreter writes what is left in the buffer when it ends, which would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise WriteError(f"cannot write the clip to stdout: {exc.strerror}") from exc


def read_prompts(prompt: str | None, file: Path | None, *, has_image: bool) -> list[str]:
    """The prompt, or the lines of the file. Raises UsageError for none and for both."""
    if prompt is not None and file is not None:
        raise UsageError("give either PROMPT or --prompts FILE, not both", option="PROMPT")
    if prompt is not None:
        if not prompt.strip() and not has_image:
            raise InvalidField("the prompt is empty; describe what the clip shows", option="prompt")
        return [prompt]
    if file is None:
        raise UsageError(
            'say what the clip shows, as in filmgate generate "a red ball bounces on the grass", or give '
            "--prompts FILE",
            option="PROMPT",
        )
    try:
        found = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except OSError as exc:
        raise UsageError(f"{file} cannot be read: {exc.strerror}", option="--prompts") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{file} is not text in UTF-8", option="--prompts") from exc
    if not found:
        raise UsageError(f"{file} has no prompts; write one prompt per line", option="--prompts")
    return found


def check_output(output: Path, *, is_single: bool, is_json: bool) -> None:
    """Raises UsageError for a file that would not be an MP4, and for stdout where it cannot be used."""
    if str(output) == "-":
        if is_json or not is_single:
            raise UsageError("- writes a single clip to stdout, without --json", option="--output")
        if sys.stdout.isatty():
            raise UsageError("stdout is a terminal; redirect it to a file or a player", option="--output")
    elif output.suffix.lower() not in _SUFFIXES and not output.is_dir():
        raise UsageError(
            f"clips are MP4 files; use {output.with_suffix('.mp4')} instead of {output}", option="--output"
        )


def check_before_loading(tasks: list[ClipTask], settings: "Settings") -> list[str]:
    """Check what can be checked without the model; returns and prints the warnings of its card."""
    from filmgate.models.cards import find_card

    admission, codec = settings.admission, settings.pipeline.codec
    warnings: list[str] = []
    for task in tasks:
        card = find_card(task.request.model or DEFAULT_MODEL, admission.models_file)
        if card is not None:
            spec = check_request(task.request, card.name, card.limits, admission, codec)
            warnings += card.warnings(spec)
    unique = list(dict.fromkeys(warnings))
    for warning in unique:
        typer.echo(f"warning: {warning}", err=True)
    return unique


def render_all(
    tasks: list[ClipTask],
    model: "NamedModel",
    stills: tuple[Path | None, Path | None],
    settings: "Settings",
    adapters: "AdapterRegistry",
) -> "list[RenderReport]":
    """Load the model once and render every clip."""
    with ExitStack() as stack:
        with _without_collections():
            from filmgate.cli.progress import shown_progress
            from filmgate.pipeline.encode.clip_file import check_target
            from filmgate.pipeline.encode.stills import StillPaths
            from filmgate.pipeline.generate import LocalModel

            paths = StillPaths(*stills)
            targets = [("--output", task.path) for task in tasks]
            for option, path in [*targets, *zip(("--thumbnail", "--spritesheet"), stills, strict=True)]:
                if path is not None:
                    check_target(path, option)
            control = stack.enter_context(shown_progress(f"loading {model.name}"))
            loaded = stack.enter_context(LocalModel(model, settings, pull_progress(), adapters))
        for task in tasks:  # before hours of rendering
            loaded.check(task.request)
        return [loaded.render(task.request, task.path, paths, control) for task in tasks]


@contextmanager
def _without_collections() -> "Iterator[None]":
    """Importing torch and diffusers makes half a million objects and no garbage: a sixth of the start."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _read_image(path: Path) -> Upload:
    try:
        return Upload("image", path.read_bytes())
    except OSError as exc:
        raise InvalidField(f"{path} cannot be read: {exc.strerror}", option="image") from exc


def as_dict(report: "RenderReport", model: str) -> dict[str, object]:
    """The report as `--json` prints it."""
    clip, request = report.clip, report.request
    return {
        "path": str(clip.path),
        "size_bytes": clip.size_bytes,
        "model": model,
        "seed": request.seed,
        "width": clip.shape.width,
        "height": clip.shape.height,
        "frames": clip.shape.frames,
        "fps": request.fps,
        "steps": request.steps,
        "quality": request.quality,
        "stage_seconds": {stage: round(s, 4) for stage, s in report.stage_seconds.items()},
        "is_text_cached": report.is_text_cached,
        "first_fragment_seconds": round(clip.first_fragment_seconds, 4),
        "decode_rung": clip.rung,
        "peak_device_bytes": report.peak_device_bytes,
        "peak_host_bytes": report.peak_host_bytes,
    }


def summary(report: "RenderReport", model: str, place: str) -> str:
    """The report as text; `place` is where the clip was written to."""
    clip, request, stages = report.clip, report.request, report.stage_seconds
    before_decode = sum(stages.values()) - stages["decode"]
    on_gpu = f"{report.peak_device_bytes / 2**30:.2f} GiB GPU, " if report.peak_device_bytes else ""
    rows = {
        "clip": f"{place}  ({clip.size_bytes / 1024:,.0f} KiB)",
        "video": f"{clip.shape.width}x{clip.shape.height}, {clip.shape.frames} frames at {request.fps} fps",
        "model": f"{model}, {request.steps} steps, quality {request.quality}, seed {request.seed}",
        "seconds": ", ".join(f"{stage} {s:.1f}" for stage, s in stages.items()),
        "first frame": f"playable {before_decode + clip.first_fragment_seconds:.1f} s after the start",
        "peak memory": f"{on_gpu}{report.peak_host_bytes / 2**30:.2f} GiB host",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in rows.items())
