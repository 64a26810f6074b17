"""`filmgate generate`: renders a clip from a prompt and reports time and memory."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.models import pull_progress
from filmgate.errors import InvalidField
from filmgate.jobs import Size
from filmgate.models.requests import Upload, VideoRequest

if TYPE_CHECKING:
    from filmgate.pipeline.render import RenderReport

DEFAULT_MODEL = "flipbook"


def generate(  # noqa: PLR0913, PLR0917 - one argument per flag of the contract
    prompt: Annotated[str, typer.Argument(help="What the clip shows.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("clip.mp4"),
    model: Annotated[
        str,
        typer.Option(
            help="A model in the package, a diffusers folder, a hub id or s3://BUCKET/models/NAME/vN/."
        ),
    ] = DEFAULT_MODEL,
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT. Default: the model's.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Length of the clip in seconds.")] = None,
    frames: Annotated[int | None, typer.Option(help="Length in frames, instead of --seconds.")] = None,
    fps: Annotated[int | None, typer.Option(help="Frames per second.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed renders the same clip on the same machine.")
    ] = None,
    guidance: Annotated[float | None, typer.Option(help="How closely the clip follows the prompt.")] = None,
    negative: Annotated[str, typer.Option(help="What the clip should not show.")] = "",
    image: Annotated[Path | None, typer.Option(help="Image to start from.")] = None,
    thumbnail: Annotated[Path | None, typer.Option(help="Also write the middle frame to this file.")] = None,
    spritesheet: Annotated[
        Path | None, typer.Option(help="Also write a sheet of sixteen frames to this file.")
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Render a clip from a prompt, or from an image and a prompt."""
    if not prompt.strip() and image is None:
        raise InvalidField("the prompt is empty; describe what the clip shows", option="prompt")
    request = VideoRequest(
        prompt,
        model,
        size=Size.parse(size) if size else None,
        seconds=seconds,
        frames=frames,
        fps=fps,
        steps=steps,
        seed=seed,
        guidance=guidance,
        negative_prompt=negative or None,
        image=_read_image(image) if image else None,
    )
    report = _render(request, model, output, (thumbnail, spritesheet))
    typer.echo(json.dumps(as_dict(report, model)) if is_json else summary(report, model))


def _render(
    wanted: VideoRequest, model: str, output: Path, stills: tuple[Path | None, Path | None]
) -> "RenderReport":
    from filmgate.settings import load_settings

    settings = load_settings()
    from filmgate.cli.progress import shown_progress
    from filmgate.models.requests import to_spec
    from filmgate.models.weights import ensure_local, open_cache
    from filmgate.pipeline.clip_writer import ClipOutputs
    from filmgate.pipeline.encode.clip_file import check_target
    from filmgate.pipeline.encode.stills import StillPaths
    from filmgate.pipeline.loading.loader import load_model
    from filmgate.pipeline.render import Renderer
    from filmgate.pipeline.requests import to_clip_request
    from filmgate.pipeline.text.encode import Prompt

    check_target(output)
    still_paths = StillPaths(*stills)
    with ExitStack() as held:
        folder = ensure_local(model, open_cache(settings.models, settings.data), held, pull_progress())
        control = held.enter_context(shown_progress(f"loading {model}"))
        loaded = load_model(folder, settings.pipeline)
        spec = to_spec(wanted, model, loaded.limits, settings.admission.prompt_max_chars)
        request = to_clip_request(spec, wanted.image.data if wanted.image else None)
        metadata = {"model": model, "seed": str(request.seed)}
        text = Prompt(spec.prompt, spec.negative_prompt or "", request.guidance)
        renderer = Renderer(loaded, settings.pipeline)
        return renderer.render(text, request, output, ClipOutputs(metadata, still_paths), control)


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
        "stage_seconds": {stage: round(s, 4) for stage, s in report.stage_seconds.items()},
        "is_text_cached": report.is_text_cached,
        "first_fragment_seconds": round(clip.first_fragment_seconds, 4),
        "decode_rung": clip.rung,
        "peak_device_bytes": report.peak_device_bytes,
        "peak_host_bytes": report.peak_host_bytes,
    }


def summary(report: "RenderReport", model: str) -> str:
    """The report as text."""
    clip, request, stages = report.clip, report.request, report.stage_seconds
    before_decode = sum(stages.values()) - stages["decode"]
    on_gpu = f"{report.peak_device_bytes / 2**30:.2f} GiB GPU, " if report.peak_device_bytes else ""
    rows = {
        "clip": f"{clip.path}  ({clip.size_bytes / 1024:,.0f} KiB)",
        "video": f"{clip.shape.width}x{clip.shape.height}, {clip.shape.frames} frames at {request.fps} fps",
        "model": f"{model}, {request.steps} steps, seed {request.seed}",
        "seconds": ", ".join(f"{stage} {s:.1f}" for stage, s in stages.items()),
        "first frame": f"playable {before_decode + clip.first_fragment_seconds:.1f} s after the start",
        "peak memory": f"{on_gpu}{report.peak_host_bytes / 2**30:.2f} GiB host",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in rows.items())
