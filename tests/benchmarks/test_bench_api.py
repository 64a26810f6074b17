def test_a_short_run_reports_every_figure_and_flat_memory(run_benchmark):
    sizes = ("--creates", 500, "--rounds", 1, "--soak", 1500, "--watchers", 20)
    report = run_benchmark("api", *sizes)
    assert report["settings"]["creates"] == 500
    throughput, memory = report["results"]["throughput"], report["results"]["memory"]
    # Eight connections fill page caches of 2 MB each during the first 3,000 creates. 2,100 of them come
    # before the first reading: the rounds and the first third of the soak.
    assert memory["late_bytes"] < 1.10 * memory["early_bytes"]
    assert throughput["filmgate_cpu_ms"] > 0
    assert report["ratios"]["filmgate_to_bare"] > 0
    assert report["ratios"]["watched_to_alone"] > 0
