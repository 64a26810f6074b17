import pytest

from benchmarks.queue_databases import opened_servers
from filmgate.errors import UsageError


def test_a_short_run_compares_two_queues_on_each_database(run_benchmark, postgres_server_url):
    sizes = ("--short", 10, "--long", 200, "--leases", 100, "--database-url", postgres_server_url)
    report = run_benchmark("queue", *sizes)
    assert set(report["results"]) == {"sqlite", "postgresql"}
    for engine, results in report["results"].items():
        assert results["short"]["median_ms"] > 0
        assert report["ratios"][f"{engine}_long_to_short_median"] > 0
        assert report["ratios"][f"{engine}_long_to_short_p99"] > 0


def test_an_unknown_engine_is_rejected():
    with pytest.raises(UsageError, match="known: sqlite, postgresql"), opened_servers("oracle", None):
        pass
