import json
import subprocess
import sys


def test_the_bench_of_the_managed_worker_measures_real_processes():
    command = [
        sys.executable,
        "-m",
        "filmgate",
        "bench",
        "managed",
        "--jobs",
        "20",
        "--seconds",
        "0.5",
        "--json",
    ]
    figures = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (figures["jobs"], figures["provider_jobs"]) == (20, 20)
    assert figures["waiting_bytes"] < 200 * 2**20
    assert figures["threads"] <= 12
