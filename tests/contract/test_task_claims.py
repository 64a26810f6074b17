"""Claims of background tasks, on each database: one process runs a task for all of them."""

from concurrent.futures import ThreadPoolExecutor

from filmgate.database.task_claims import claim_task


def test_a_task_is_claimed_once_per_interval(bench):
    def claim(task="orphans"):
        return claim_task(bench.database, task, 3600.0)

    with ThreadPoolExecutor(4) as replicas:
        assert sorted(replicas.map(lambda _: claim(), range(8))) == [False] * 7 + [True]
    assert claim("another task")
    bench.clocks.pass_time(3600)
    assert not claim()
    bench.clocks.pass_time(1)
    assert (claim(), claim()) == (True, False)


def test_a_claim_from_before_the_clock_was_set_back_does_not_count(bench):
    assert claim_task(bench.database, "orphans", 3600.0)
    bench.clocks.step(-86400)
    assert claim_task(bench.database, "orphans", 3600.0)
