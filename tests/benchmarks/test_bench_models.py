from benchmarks.bench_models import measure_pull


def test_a_pull_uses_at_least_four_connections_where_a_stream_uses_one():
    """With a rate limit per connection, n connections at once are n times as fast as one."""
    size_bytes, rate = 4 << 20, 0.6 * 2**20
    results = measure_pull(size_bytes, rate, connections=16, rounds=1)
    assert results["stream_seconds"] >= 0.9 * size_bytes / rate, "the server limits the rate"
    assert results["peak_connections"] >= 4


def test_a_short_run_reports_the_ratio(run_benchmark):
    report = run_benchmark("models", "--megabytes", 1, "--rate", 8, "--rounds", 1)
    assert report["settings"]["connections"] == 16
    assert report["ratios"]["stream_to_pull"] > 0
