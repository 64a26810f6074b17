"""KEDA's decisions, and replays of a scaled fleet."""

from dataclasses import replace
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.planner.fleet.keda import SYNC_SECONDS, Autoscaler, KedaSettings, OfficeHours
from filmgate.planner.fleet.replay import Job, Machines, _Fleet, replay
from filmgate.planner.fleet.scenarios import BURST, SCENARIOS
from filmgate.planner.fleet.simulation import Operation, simulate

EAGER = KedaSettings(min_replicas=1, max_replicas=20, scale_out_seconds=0, scale_in_seconds=0)


def follow(settings, metrics, replicas=1):
    """The number of workers after each sync with a backlog and running jobs."""
    scaler, found = Autoscaler(settings), []
    for number, (backlog, running) in enumerate(metrics):
        replicas = scaler.decide(number * SYNC_SECONDS, backlog, running, replicas)
        found.append(replicas)
    return found


@pytest.mark.parametrize(
    ("backlog", "running", "replicas", "expected"),
    [
        (300, 0, 4, 5),  # ceil(300 / 60)
        (301, 0, 5, 5),  # within 10 % of the target
        (331, 0, 5, 6),
        (60, 7, 4, 7),  # the largest trigger counts
        (0, 0, 5, 4),  # one less in a minute
        (6000, 0, 4, 8),  # at most twice as many, or four more, in 15 s
        (6000, 0, 12, 20),
    ],
)
def test_the_formula_of_kubernetes(backlog, running, replicas, expected):
    assert follow(EAGER, [(backlog, running)], replicas) == [expected]


def test_a_scale_out_waits_until_the_need_has_lasted():
    settings = replace(EAGER, scale_out_seconds=60)
    needs = [(0, 1), (600, 1), (600, 1), (60, 1), *[(600, 1)] * 6]
    grown = follow(settings, needs)
    assert grown[:8] == [1] * 8
    assert grown[8:] == [5, 10]


def test_a_scale_in_waits_for_the_last_need_and_removes_one_a_minute():
    settings = replace(EAGER, scale_in_seconds=300)
    found = follow(settings, [(480, 0), *[(0, 0)] * 40], replicas=8)
    assert found[:21] == [8] * 21  # 300 s
    falls = [place for place, (before, after) in enumerate(pairwise(found)) if after < before]
    assert [found[place + 1] for place in falls[:3]] == [7, 6, 5]
    assert {after - before for before, after in pairwise(falls)} == {4}  # 60 s


def test_the_last_worker_goes_after_the_cooldown_and_comes_back_at_a_poll():
    settings = KedaSettings(min_replicas=0, scale_in_seconds=300)
    found = follow(settings, [(0, 1), *[(0, 0)] * 20, *[(30, 0)] * 2], replicas=1)
    assert found[:20] == [1] * 20
    assert (found[20], 1 in found[21:]) == (0, True)


def test_office_hours_keep_a_minimum_on_weekdays():
    hours = OfficeHours(8, 18, 3)
    at = [
        hours.replicas_at(day * 86_400 + hour * 3600)
        for day, hour in ((0, 7), (0, 8), (4, 17), (4, 18), (5, 9))
    ]
    assert at == [0, 3, 3, 0, 0]


def test_a_fleet_of_fixed_size_is_the_planners_own_simulation():
    jobs = SCENARIOS["monday"].jobs(60.0)
    jobs = [replace(job, tenant="one") for job in jobs]
    fixed = replay(jobs, KedaSettings(min_replicas=4, max_replicas=4), Machines())
    latencies = [start + job.seconds - job.at for job, start in zip(jobs, fixed.starts, strict=True)]
    plain = simulate([job.at for job in jobs], 60.0, Operation(4, 4))
    assert latencies == pytest.approx(plain.latencies)


def test_a_new_worker_pays_for_a_node_and_a_load_and_an_empty_node_is_used_again():
    settings = KedaSettings(min_replicas=0, scale_out_seconds=0, scale_in_seconds=60)
    machines = Machines(node_seconds=100, load_seconds=50, keep_seconds=600, usd_per_hour=2.0)
    soon, late = (replay([Job(0, "a", 60), Job(at, "a", 60)], settings, machines) for at in (600, 3000))
    assert (soon.nodes_started, late.nodes_started) == (1, 2)
    assert soon.starts[0] == late.starts[0] == 150
    assert 50 <= soon.starts[1] - 600 <= 50 + 30  # a poll and a load
    assert 150 <= late.starts[1] - 3000 <= 150 + 30
    assert late.usd == pytest.approx(late.gpu_hours * 2)


def test_a_burst_of_one_tenant_makes_no_other_tenant_late():
    found = replay(SCENARIOS["burst"].jobs(60.0), KedaSettings(), Machines())
    assert found.late(300, BURST) > 100
    assert found.late(300) == found.late(300, BURST)


def test_the_command_compares_settings_and_draws_them(tmp_path):
    picture = tmp_path / "scaling.svg"
    options = ["--scenario", "night", "--office-hours", "8-18:2", "--svg", str(picture)]
    done = CliRunner().invoke(app, ["deploy", "replay", *options], catch_exceptions=False)
    assert "these settings" in done.stdout
    assert picture.read_text().count("<polyline") == 2


def test_a_new_worker_takes_the_node_that_became_empty_last():
    """The older ones expire, also after one of them has."""
    fleet = _Fleet(Machines(keep_seconds=10), 4)
    for now in (1, 2, 3, 4):
        fleet.resize(4 - now, now)
        fleet.advance(now)
    fleet.advance(11)  # the node that has been empty since 1 is gone
    fleet.resize(1, 11)
    fleet.advance(13)  # and those since 2 and 3
    paid = fleet.node_seconds
    fleet.advance(3613)
    assert fleet.node_seconds - paid == 3600
