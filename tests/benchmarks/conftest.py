"""Fixtures of the benchmark tests. No test here asserts how fast a machine is."""

import json
import subprocess
import sys

import pytest

from tests.stores import rig  # noqa: F401 - fixture


@pytest.fixture
def run_benchmark(tmp_path):
    """Runs `python -m benchmarks.bench_NAME --json` and returns its report."""

    def run(name, *arguments, codes=(0,)):
        command = [sys.executable, "-m", f"benchmarks.bench_{name}", "--json", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
        assert done.returncode in codes, done.stderr
        (line,) = done.stdout.splitlines()
        return json.loads(line)

    return run
