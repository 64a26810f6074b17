"""`filmgate bench service`: the load test of a server and its worker."""

import json
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from filmgate.cli.options import AsJson
from filmgate.errors import RunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from filmgate.cli.load_test.mix import ClipKind
    from filmgate.cli.load_test.report import Measured
    from filmgate.cli.load_test.server import Server
    from filmgate.jobs import Job


def bench_service(  # noqa: PLR0913, PLR0917 - one argument per flag
    model: Annotated[
        list[str] | None, typer.Option(help="Model to serve: NAME or NAME=LOCATION. Default: flipbook.")
    ] = None,
    clip: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of clip: model=, size=, seconds=, steps=, guidance=, quality=, share=, catalog= (its "
            "name in the planner), separated by commas. Repeat it for a mix."
        ),
    ] = None,
    clips: Annotated[int, typer.Option(min=2, help="Number of clips, unless --minutes is given.")] = 10,
    per_hour: Annotated[
        float | None, typer.Option(min=0.001, help="Requests per hour; without it all arrive at once.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Duration of the arrivals.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed runs of denoise and decode alone.")] = 3,
    usd_per_hour: Annotated[
        float | None, typer.Option(min=0.0, help="Price of the machine; default: api.usd_per_gpu_hour.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Test this server instead of starting one.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File with the API key for --url.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    is_json: AsJson = False,
) -> None:
    """Load test: clips per hour, seconds between clips, latency and cost, beside the planner's prediction."""
    from filmgate.cli.bench import provenance
    from filmgate.cli.load_test.mix import parse_kind, plan_requests
    from filmgate.cli.load_test.report import figures, table
    from filmgate.cli.worker import parse_models
    from filmgate.settings import load_settings

    require_writable(out, "--out")
    if (url is None) != (key_file is None):
        raise UsageError("--url and --key-file belong together; give both or neither", option="--url")
    kinds = [parse_kind(text) for text in clip or [""]]
    plan = plan_requests(kinds, clips, per_hour, minutes)
    models = parse_models(model or ["flipbook"])
    alone = {} if url else measure_alone(models, kinds, rounds)
    with _opened_server(url, key_file, models) as server:
        measured = _send(server, kinds, plan)
    price = usd_per_hour if usd_per_hour is not None else load_settings().api.usd_per_gpu_hour
    seconds = {kind: each["denoise_seconds"] + each["decode_seconds"] for kind, each in alone.items()}
    device = next(iter(alone.values()))["device"] if alone else None
    result = {
        "bench": "service",
        **provenance(),
        "device": device,
        "mix": "; ".join(map(str, kinds)),
        "requests_per_hour": per_hour,
        **figures(measured, seconds, price or None),
        "alone": [{"clip": str(kind), **each} for kind, each in alone.items()],
        "planned": predict(alone, device),
    }
    if out is not None:
        out.write_text(json.dumps(result, indent=2) + "\n")
    typer.echo(json.dumps(result) if is_json else table(result))


def require_writable(path: Path | None, option: str) -> None:
    """Raises UsageError before a long run whose result could not be written."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UsageError(f"{path} cannot be written; give a file in a folder that exists", option=option)


def measure_alone(
    models: "Mapping[str, str]", kinds: "Sequence[ClipKind]", rounds: int
) -> "dict[ClipKind, dict[str, Any]]":
    """Denoise and decode of each kind of clip, in a child process that frees the GPU when it ends."""
    from filmgate.cli.worker import check_locations

    check_locations(models)
    if unknown := [kind.model for kind in kinds if kind.model and kind.model not in models]:
        raise UsageError(f"model={unknown[0]} is not served; add --model {unknown[0]}", option="--clip")
    default = next(iter(models))
    clips = [
        {"location": models.get(kind.model or default, kind.model), "options": kind.options} for kind in kinds
    ]
    done = subprocess.run(
        [sys.executable, "-m", "filmgate.pipeline.bench.alone"],
        input=json.dumps({"clips": clips, "rounds": rounds}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RunError(f"the clips could not be rendered: {done.stderr.strip()[-2000:]}")
    return dict(zip(kinds, json.loads(done.stdout), strict=True))


@contextmanager
def _opened_server(url: str | None, key_file: Path | None, models: "Mapping[str, str]") -> "Iterator[Server]":
    """The server at this URL, or one that runs until the block ends."""
    from filmgate.cli.load_test.server import Server, started_server
    from filmgate.client.protocol import read_key_file

    if url and key_file:
        yield Server(url, read_key_file(key_file, "--key-file"))
        return
    given = [f"{name}={place}" for name, place in models.items()]
    with (
        TemporaryDirectory(prefix="filmgate-bench-") as folder,
        started_server(given, Path(folder)) as server,
    ):
        yield server


def _send(server: "Server", kinds: "Sequence[ClipKind]", plan: Any) -> "Measured":
    from filmgate.cli.load_test.report import Measured
    from filmgate.cli.load_test.requests import send_requests, warm_up
    from filmgate.cli.load_test.utilisation import UtilisationSampler, busy_share

    if failed := [each.error for each in warm_up(server, kinds) if each.error]:
        raise RunError(f"a clip failed before the test: {failed[0]}")
    with UtilisationSampler() as sampler:
        sent = send_requests(server, plan)
    ids = [each.video_id for each in sent if each.video_id is not None]
    jobs = read_jobs(server.data, ids) if server.data is not None else []
    ends = {str(job.id): job.finished_at for job in jobs if job.finished_at is not None}
    return Measured(plan, sent, ends, busy_share(sampler.samples, list(ends.values())))


def read_jobs(data: Path, ids: "Sequence[str]") -> "list[Job]":
    """The jobs of a server that this command started, from the database in its data folder."""
    from filmgate.database import open_database
    from filmgate.jobs import JobId
    from filmgate.scheduling import open_reader
    from filmgate.settings import load_settings
    from filmgate.store.keys import open_keys
    from filmgate.tenants.base import LOCAL_TENANT

    settings = load_settings()
    with closing(open_database(settings.queue, data)) as database:
        reader = open_reader(database, open_keys(settings.store, data))
        return [reader.find(LOCAL_TENANT, JobId(each)) for each in ids]


def predict(alone: "Mapping[ClipKind, Mapping[str, Any]]", device: str | None) -> dict[str, float | str]:
    """The planner's seconds for each kind of clip that names its model in the catalog."""
    from dataclasses import replace

    from filmgate.catalog.loader import load_calibration, load_catalog
    from filmgate.jobs import Size
    from filmgate.planner.video.clip import clip_for
    from filmgate.planner.video.clip_time import clip_time
    from filmgate.planner.video.question import VideoQuestion

    named = {kind: shape for kind, shape in alone.items() if kind.catalog}
    if not named or device is None:
        return {"nothing": "name the model in the catalog with catalog=NAME in --clip"}
    catalog = load_catalog()
    found: dict[str, float | str] = {}
    gpu = catalog.gpu(device)
    for kind, shape in named.items():
        known = catalog.video_model(kind.catalog or "")
        size = Size.parse(str(shape["size"]))
        clip = clip_for(known, size=size, frames=shape["frames"], fps=shape["fps"], steps=shape["steps"])
        forwards = 2 if shape["guidance"] > 1 else 1
        clip = replace(clip, forwards_per_step=forwards, quality=shape["quality"])
        software = VideoQuestion(known, clip).software()
        time = clip_time(known, clip, gpu, 1, software, load_calibration().constants)
        found[str(kind)] = round(time.seconds, 4)
    return found
