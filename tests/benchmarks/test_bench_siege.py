from benchmarks.attackers import KINDS


def test_attackers_of_every_kind_do_not_stop_the_honest_tenants(run_benchmark):
    """Latencies are left to `make siege`: beside other tests, they depend on the load of the machine."""
    report = run_benchmark("siege", "--seconds", 6, "--idle-seconds", 2)
    besieged = report["results"]["besieged"]
    assert report["results"]["responses_5xx"] == {}
    assert (besieged["late"], besieged["lost"], besieged["refused"]) == (0, 0, 0)
    assert besieged["completed"] == besieged["creates"] > 0
    assert besieged["max_memory_mb"] < 400
    made = report["results"]["attacks"]
    assert [kind.__name__ for kind in KINDS if not made.get(kind.__name__)] == []
