"""A small run of `filmgate bench api`: the figures are there, and memory is flat."""

import json
import subprocess
import sys


def test_a_short_bench_finds_memory_flat_and_every_figure():
    command = [sys.executable, "-m", "filmgate", "bench", "api", "--json"]
    sizes = ["--creates", "300", "--rounds", "1", "--soak", "3000", "--watchers", "50"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, check=True, timeout=200)
    figures = json.loads(done.stdout)
    memory = figures["memory"]
    # The first tenth fills pools and caches; what grows after it would grow for ever.
    assert memory["late_bytes"] < 1.10 * memory["early_bytes"]
    assert figures["throughput"]["ours_to_bare"] > 0
    # CPU time does not depend on what else the machine does; 0.5 is measured on a quiet one.
    assert figures["throughput"]["bare_cpu_ms"] / figures["throughput"]["ours_cpu_ms"] > 0.35
    assert figures["watching"]["watched_to_alone"] > 0
