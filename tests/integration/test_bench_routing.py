"""`filmgate bench routing`, small enough for every run."""

import json

from tests.commands import run_filmgate


def test_the_bench_prints_one_json_object_with_both_figures(tmp_path):
    small = ("--waiting", "300", "--choices", "1000")
    asked = run_filmgate(tmp_path, "bench", "routing", "--json", *small)
    result = json.loads(asked.stdout)
    assert (asked.returncode, result["bench"], result["database"]) == (0, "routing", "sqlite")
    assert result["choice"]["leaves_us"] < 100
    # One GPU makes seven jobs of ten seconds within 90 s at a safety of 1.2; everything else leaves.
    assert (result["spill"]["waiting"], result["spill"]["left"]) == (300, 293)
    assert result["spill"]["seconds"] < 2
