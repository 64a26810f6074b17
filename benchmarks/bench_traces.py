"""What traces cost: CPU seconds of all spans of a job, their export included, beside those of one clip.

CPU seconds of this process and its threads, because the machine may be busy. The receiver is another process.
"""

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.processes import started_server
from benchmarks.report import JsonFlag, print_report, run
from filmgate.jobs import Lease, Stage, WorkerId
from filmgate.settings import TraceSettings
from filmgate.telemetry.trace_context import TraceContext, new_span_id, trace_of, within_trace
from filmgate.telemetry.tracing import Tracer, open_tracer, traced
from filmgate.telemetry.untraced import NO_TRACER
from filmgate.worker.tracing import WorkerTracing
from tests.tickets import make_ticket, queued_job

RECEIVER = (
    "from tests.otlp_receiver import otlp_receiver; import sys\n"
    "with otlp_receiver() as received: print(received.url, flush=True); sys.stdin.read()"
)
STAGES = (Stage.TEXT, Stage.DENOISE, Stage.DECODE, "encode", Stage.UPLOAD)


def main(
    jobs: Annotated[int, typer.Option(min=1, max=150, help="Jobs whose spans are measured.")] = 100,
    clips: Annotated[int, typer.Option(min=1, help="Flipbook clips to compare with.")] = 3,
    is_json: JsonFlag = False,
) -> None:
    """Measure the spans of jobs with traces on and off, and whole clips of the model in the package."""
    with started_server("-c", RECEIVER) as receiver:
        tracer = open_tracer(TraceSettings(endpoint=receiver.line), "bench")
        on = measure_spans(tracer, jobs)
    off = measure_spans(NO_TRACER, jobs)
    clip = measure_clips(clips)
    results = {"on_cpu_seconds": on, "off_cpu_seconds": off, "clip_cpu_seconds": clip}
    ratios = {"on_to_clip": on / clip, "off_to_clip": off / clip}
    print_report("traces", {"jobs": jobs, "clips": clips}, results, ratios, is_json=is_json)


def measure_spans(tracer: Tracer, jobs: int) -> float:
    """CPU seconds per job of everything that server and worker record, until it is exported."""
    ticket = replace(make_ticket(), span_id=new_span_id())
    lease = Lease(queued_job(ticket, time.time()), WorkerId("bench"), 1, 30.0)
    record_job(tracer, lease)
    began = time.process_time()
    for _ in range(jobs):
        record_job(tracer, lease)
    tracer.close()
    return (time.process_time() - began) / jobs


def record_job(tracer: Tracer, lease: Lease) -> None:
    """The spans of one request and one attempt."""
    request = tracer.start("POST /v1/videos", TraceContext(lease.job.trace_id), kind="server")
    with within_trace(request.context), traced(tracer, "admit", tenant_id="acme"):
        for name in ("screen", "route"):
            with traced(tracer, name) as span:
                span.set(route="gpu")
    request.set(status=200, http_route="/v1/videos")
    request.end()
    attempt = WorkerTracing(tracer, "i-1").begin(lease)
    now = time.monotonic()
    for stage in STAGES:
        attempt.record(stage, now, now)
    for name in ("checkpoint", "publish"):
        with within_trace(attempt.context), attempt.span(name):
            pass
    attempt.end()
    tracer.start("link", trace_of(lease.job)).end()


def measure_clips(clips: int) -> float:
    """CPU seconds per clip of Flipbook's default request, after a first one that loads the model."""
    from filmgate.models.names import name_model
    from filmgate.models.requests import VideoRequest
    from filmgate.pipeline.generate import LocalModel
    from filmgate.settings import load_settings

    with TemporaryDirectory() as folder, LocalModel(name_model("flipbook"), load_settings()) as model:
        request = VideoRequest("a red ball bounces on the grass", "flipbook")
        model.render(request, Path(folder) / "first.mp4")
        began = time.process_time()
        for number in range(clips):
            model.render(request, Path(folder) / f"{number}.mp4")
        return (time.process_time() - began) / clips


if __name__ == "__main__":
    run(main)
