"""The worker process of the chaos tests: the real worker with the pattern runner."""

import time
from argparse import ArgumentParser
from pathlib import Path

from filmgate.settings import load_settings
from filmgate.worker_process import run_worker
from tests.pattern_runner import PatternRunner


def step_clock(offset: Path) -> None:
    """Shift the wall clock of this process by the seconds in a file."""
    real_time = time.time
    time.time = lambda: real_time() + float(offset.read_text() or 0)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--pace", type=float, default=0.02)
    parser.add_argument("--clock-offset", type=Path)
    parser.add_argument("--chunk-bytes", type=int, default=4096)
    parser.add_argument("--hold", type=Path)
    options = parser.parse_args()
    if options.clock_offset:
        step_clock(options.clock_offset)
    runner = PatternRunner(options.pace, options.chunk_bytes, options.hold)
    run_worker(load_settings(), lambda *_services: runner)
