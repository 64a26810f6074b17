"""The queue played forward: the order the queue would serve in, and waits that shrink with what leaves."""

import math

from filmgate.jobs import JobId, RouteReason, StageSeconds, TenantId
from filmgate.scheduling.rehearsal import rehearse
from filmgate.scheduling.waiting import Line, Turn, Waiting
from tests.tickets import SPEC


def waiting(name, tenant="acme", gpu_seconds=10.0, deadline_at=100.0):
    predicted = StageSeconds(denoise=gpu_seconds)
    home = RouteReason.DEFAULT
    return Waiting(JobId(name), TenantId(tenant), SPEC, predicted, 0.0, deadline_at, home)


def line(*jobs, **turns):
    return Line(0.0, jobs, {TenantId(name): turn for name, turn in turns.items()})


def play(line, gpus=1.0, running=0.0, leaving=()):
    waits = {}

    def stays(job, wait):
        waits[job.job_id] = wait
        return job.job_id not in leaving

    rehearse(line, gpus, running, stays)
    return waits


def test_jobs_of_one_tenant_wait_for_those_before_them_and_half_of_what_runs():
    assert play(line(waiting("a"), waiting("b"), waiting("c")), running=5.0) == {
        "a": 5.0,
        "b": 15.0,
        "c": 25.0,
    }
    assert play(line(waiting("a"), waiting("b")), gpus=2.0, running=5.0) == {"a": 2.5, "b": 7.5}


def test_a_job_that_leaves_costs_those_behind_it_nothing():
    three = line(waiting("a"), waiting("b"), waiting("c"))
    assert play(three, leaving={"a", "b"}) == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_tenants_take_turns_by_what_they_have_had_and_by_weight():
    crowd = [waiting(f"big-{n}", "big") for n in range(4)]
    one = waiting("small-0", "small")
    waits = play(line(*crowd, one, big=Turn(1.0, 50.0), small=Turn(1.0, 0.0)))
    assert list(waits) == ["small-0", "big-0", "big-1", "big-2", "big-3"]
    both = [waiting(f"{t}-{n}", t) for t in ("heavy", "light") for n in range(4)]
    order = list(play(line(*both, heavy=Turn(2.0, 0.0), light=Turn(1.0, 0.1))))
    assert order[:4] == ["heavy-0", "light-0", "heavy-1", "heavy-2"]


def test_without_a_gpu_everybody_waits_for_ever():
    assert play(line(waiting("a"), waiting("b")), gpus=0.0) == {"a": math.inf, "b": math.inf}


def test_an_empty_line_is_over_at_once():
    assert play(line()) == {}
