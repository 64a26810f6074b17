def test_a_short_run_reports_choices_and_a_spill(run_benchmark):
    report = run_benchmark("routing", "--engines", "sqlite", "--waiting", 300, "--choices", 1000)
    choice, spill = report["results"]["choice"], report["results"]["spill"]["sqlite"]
    assert choice["provider_us"] > 0
    # One GPU finishes seven jobs of ten seconds within 90 s at a safety factor of 1.2; the others move.
    assert spill["moved"] == 293
    assert spill["seconds"] > 0
    assert set(report["ratios"]) == {"provider_to_gpu_choice", "sqlite_spill_to_insert"}
