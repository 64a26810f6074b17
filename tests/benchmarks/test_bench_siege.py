import json

import pytest
import typer

from benchmarks import bench_siege
from benchmarks.attackers import KINDS


def test_attackers_of_every_kind_do_not_stop_the_honest_tenants(run_benchmark):
    """Latencies are left to `make siege`: beside other tests, they depend on the load of the machine."""
    report = run_benchmark("siege", "--seconds", 6, "--idle-seconds", 2, codes=(0, 1))
    assert [name for name in report["results"]["broken"] if "p99" not in name] == []
    besieged = report["results"]["besieged"]
    assert report["results"]["responses_5xx"] == {}
    assert (besieged["late"], besieged["lost"], besieged["refused"]) == (0, 0, 0)
    assert besieged["completed"] == besieged["creates"] > 0
    assert besieged["max_memory_mb"] < 400
    made = report["results"]["attacks"]
    assert [kind.__name__ for kind in KINDS if not made.get(kind.__name__)] == []


def test_broken_limits_are_named_and_fail_with_json_too(monkeypatch, capsys):
    besieged = {"max_memory_mb": 401.0, "late": 0, "lost": 1, "refused": 0}
    results = {"besieged": besieged, "responses_5xx": {"GET / 500": 2}}
    monkeypatch.setattr(
        bench_siege, "measure", lambda plan: (results, {"health_p99": 5.1, "create_p99": 5.0})
    )
    with pytest.raises(typer.Exit) as ended:
        bench_siege.main(is_json=True)
    assert ended.value.exit_code == 1
    assert json.loads(capsys.readouterr().out)["results"]["broken"] == [
        "health p99, besieged to idle",
        "memory of the server, MB",
        "honest jobs lost",
        "responses with 5xx",
    ]
