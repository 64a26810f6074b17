"""Runs a load test: the device without the service, the prediction, then the requests."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from filmgate.errors import RunError
from filmgate.load_test.mix import ClipKind, Plan
from filmgate.load_test.prediction import Planner, simulate
from filmgate.load_test.report import Measured, figures
from filmgate.load_test.requests import send_requests, warm_up
from filmgate.load_test.server import Server, started_server
from filmgate.load_test.utilization import busy_share, sampled_utilization
from filmgate.pipeline.bench.alone_result import Alone


@dataclass(frozen=True, slots=True)
class LoadTest:
    """What to measure. `server` runs elsewhere; without it, one starts that serves `models` to `tenants`."""

    kinds: tuple[ClipKind, ...]
    plan: Plan
    models: Mapping[str, str]
    tenants: int = 1
    rounds: int = 3
    usd_per_hour: float | None = None
    server: Server | None = None


def run_load_test(test: LoadTest, planner: Planner, compilation: str) -> dict[str, object]:
    """The figures, and those that the planner predicts. `compilation` is the setting `pipeline.compile`."""
    alone = {} if test.server else _measure_alone(test)
    predicted = planner.predict(alone, compilation)
    device = next(iter(alone.values()), None)
    with _opened_server(test) as server:
        measured = _send(server, test, device.gpu_uuid if device else "")
    seconds = {kind: each.seconds for kind, each in alone.items()}
    return {
        "device": device.device if device else None,
        "mix": "; ".join(map(str, test.kinds)),
        "requests_per_hour": test.plan.per_hour,
        "tenants": len(server.keys),
        **figures(measured, seconds, test.usd_per_hour),
        "alone": [{"clip": str(kind), **asdict(each)} for kind, each in alone.items()],
        "planned": _planned(test, predicted),
    }


def _measure_alone(test: LoadTest) -> dict[ClipKind, Alone]:
    """Denoise and decode of each kind of clip, in a child process that frees the GPU when it ends."""
    default = next(iter(test.models))
    clips = [{"location": test.models[kind.model or default], "options": kind.options} for kind in test.kinds]
    done = subprocess.run(
        [sys.executable, "-m", "filmgate.pipeline.bench.alone"],
        input=json.dumps({"clips": clips, "rounds": test.rounds}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RunError(f"the clips could not be rendered: {done.stderr.strip()[-2000:]}")
    return dict(zip(test.kinds, (Alone(**each) for each in json.loads(done.stdout)), strict=True))


def _planned(test: LoadTest, predicted: Mapping[ClipKind, float] | str) -> dict[str, object]:
    if isinstance(predicted, str):
        return {"reason": predicted}
    seconds = {str(kind): round(each, 4) for kind, each in predicted.items()}
    return {"seconds_per_clip": seconds, **figures(simulate(test.plan, predicted), {}, test.usd_per_hour)}


@contextmanager
def _opened_server(test: LoadTest) -> Iterator[Server]:
    if test.server is not None:
        yield test.server
        return
    given = [f"{name}={place}" for name, place in test.models.items()]
    with (
        TemporaryDirectory(prefix="filmgate-bench-") as folder,
        started_server(given, Path(folder)) as server,
    ):
        yield server.with_tenants(test.tenants)


def _send(server: Server, test: LoadTest, gpu_uuid: str) -> Measured:
    if failed := [each.error for each in warm_up(server, test.kinds) if each.error]:
        raise RunError(f"a clip failed before the test: {failed[0]}")
    with sampled_utilization(gpu_uuid) as samples:
        sent = send_requests(server, test.plan)
    jobs = server.read_jobs([(each.tenant, each.video_id) for each in sent if each.video_id is not None])
    ends = {str(job.id): job.finished_at for job in jobs if job.finished_at is not None}
    return Measured(test.plan, sent, ends, busy_share(samples, list(ends.values())))
