def test_a_short_run_measures_real_processes(run_benchmark):
    report = run_benchmark("managed", "--jobs", 20, "--seconds", 0.5)
    results = report["results"]
    assert (report["settings"]["jobs"], results["provider_jobs"]) == (20, 20)
    assert results["waiting_bytes"] < 200 * 2**20
    assert results["threads"] <= 13
    assert report["ratios"]["waiting_to_idle_bytes"] > 0
