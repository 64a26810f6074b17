"""What a worker adds between two jobs: seconds between clips over the seconds of the device alone.

    python -m benchmarks.bench_back_to_back --json

The device is a pattern runner that sleeps for every step and chunk; lease, heartbeat, checkpoint, upload and
completion are real (SQLite and encrypted files). `filmgate bench service` measures the same on a GPU.
"""

import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from benchmarks.report import JsonFlag, print_report, run
from filmgate.jobs import Job
from filmgate.pipeline.transfer.channel import pull
from filmgate.worker.base import Output, RenderTask
from tests.local_site import open_site
from tests.pattern_runner import PatternRunner


class ThreadedPattern(PatternRunner):  # type: ignore[misc] # tests have no types
    """A pattern runner whose device goes on while the worker stores, as the GPU does."""

    def render(self, task: RenderTask) -> Generator[Output, None, None]:
        def produce(emit: Callable[[Output], None]) -> None:
            for output in PatternRunner(self.pace_seconds, self.chunk_bytes).render(task):
                emit(output)

        yield from pull(produce, capacity=4, stop=lambda: None, name="pattern")


def measure(jobs: int, pace_seconds: float, chunk_bytes: int) -> tuple[float, float]:
    """Seconds between the clips of a full queue, and seconds of one clip without a worker."""
    runner = ThreadedPattern(pace_seconds, chunk_bytes)
    with tempfile.TemporaryDirectory() as folder, open_site(Path(folder)) as site:
        queued = [site.enqueue(steps=4, seed=seed) for seed in range(jobs)]
        alone = fmean(_render_alone(runner, queued[0]) for _ in range(3))
        with site.worker(runner):
            ends = sorted(site.wait_for(job).finished_at for job in queued)
    return (ends[-1] - ends[0]) / (jobs - 1), alone


def _render_alone(runner: PatternRunner, job: Job) -> float:
    started = time.monotonic()
    for _ in runner.render(RenderTask(job.spec)):
        pass
    return time.monotonic() - started


def main(
    jobs: Annotated[int, typer.Option(min=2, help="Jobs in the queue.")] = 10,
    pace: Annotated[float, typer.Option(help="Seconds of the device for a step or a chunk.")] = 0.03,
    chunk_bytes: Annotated[int, typer.Option(help="Bytes of a chunk.")] = 65_536,
    is_json: JsonFlag = False,
) -> None:
    """Measure what a worker adds between two jobs."""
    between, alone = measure(jobs, pace, chunk_bytes)
    print_report(
        "back_to_back",
        {"jobs": jobs, "pace_seconds": pace, "chunk_bytes": chunk_bytes},
        {"seconds_between_clips": round(between, 4), "device_alone": round(alone, 4)},
        {"between_to_alone": round(between / alone, 4)},
        is_json=is_json,
    )


if __name__ == "__main__":
    run(main)
