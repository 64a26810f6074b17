def test_a_short_run_reports_every_figure_and_flat_memory(run_benchmark):
    sizes = ("--creates", 50, "--rounds", 1, "--soak", 1500, "--watchers", 20)
    report = run_benchmark("api", *sizes)
    assert report["settings"]["creates"] == 50
    throughput, memory = report["results"]["throughput"], report["results"]["memory"]
    # The first third fills the pools, SQLite's page caches and the list of queued jobs in the forecast.
    assert memory["late_bytes"] < 1.10 * memory["early_bytes"]
    assert throughput["filmgate_cpu_ms"] > 0
    assert report["ratios"]["filmgate_to_bare"] > 0
    assert report["ratios"]["watched_to_alone"] > 0
