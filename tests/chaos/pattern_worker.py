"""The worker process of the chaos tests: the real worker with the pattern runner."""

import sys
import time
from pathlib import Path

from filmgate.settings import load_settings
from filmgate.worker_process import run_worker
from tests.pattern_runner import PatternRunner


def step_clock(offset: Path) -> None:
    """Shift the wall clock of this process by the seconds in a file."""
    real_time = time.time
    time.time = lambda: real_time() + float(offset.read_text() or 0)


if __name__ == "__main__":
    pace_seconds, clock_file, *chunk_bytes = sys.argv[1:]
    if clock_file:
        step_clock(Path(clock_file))
    sizes = {"chunk_bytes": int(chunk_bytes[0])} if chunk_bytes else {}
    runner = PatternRunner(pace_seconds=float(pace_seconds), **sizes)
    run_worker(load_settings(), lambda _parts: runner)
