"""Back-pressure: the wait under fair sharing, and an honest time to come back."""

import pytest

from filmgate.errors import Overloaded
from filmgate.jobs import JobState, Route, StageSeconds, TenantId
from filmgate.scheduling.base import Backlog, Load
from filmgate.scheduling.pressure import Demand, check_promise, wait_seconds

ACME, BIG = TenantId("acme"), TenantId("big")
JOB = StageSeconds(denoise=8.0, decode=2.0)


def backlog(*loads):
    return Backlog(tuple(Load(t, Route.GPU, "m", s, 1, seconds) for t, s, seconds in loads), None)


def demand(weight=1.0, weights=None, route=Route.GPU):
    return Demand(ACME, weight, JOB.gpu_seconds, weights or {}, route)


def test_an_idle_service_makes_nobody_wait():
    assert wait_seconds(backlog(), demand(), gpus=1) == 0


def test_ten_thousand_jobs_of_another_tenant_delay_a_first_job_by_one_turn():
    busy = backlog((BIG, JobState.QUEUED, 100_000.0))
    assert wait_seconds(busy, demand(), gpus=1) == JOB.gpu_seconds


def test_ones_own_queue_is_waited_for_whole():
    own = backlog((ACME, JobState.QUEUED, 100.0))
    assert wait_seconds(own, demand(), gpus=1) == 100.0


def test_a_heavier_tenant_waits_less():
    busy = backlog((BIG, JobState.QUEUED, 1000.0), (ACME, JobState.QUEUED, 90.0))
    light, heavy = demand(), demand(weight=4.0)
    assert wait_seconds(busy, light, gpus=1) == 190.0
    assert wait_seconds(busy, heavy, gpus=1) == 115.0


def test_more_gpus_shorten_the_wait_and_another_route_does_not_count():
    busy = backlog((ACME, JobState.QUEUED, 100.0), (BIG, JobState.RUNNING, 40.0))
    assert wait_seconds(busy, demand(), gpus=1) == 120.0
    assert wait_seconds(busy, demand(), gpus=4) == 30.0
    assert wait_seconds(busy, demand(route=Route.MANAGED), gpus=1) == 0.0


def test_a_kept_promise_passes_and_a_broken_one_says_when_to_come_back():
    check_promise(80.0, JOB, promise_seconds=90.0)
    with pytest.raises(Overloaded) as caught:
        check_promise(200.0, JOB, promise_seconds=90.0)
    assert caught.value.retry_after_seconds == 120.0


def test_coming_back_when_told_is_enough():
    wait = 500.0
    with pytest.raises(Overloaded) as caught:
        check_promise(wait, JOB, promise_seconds=90.0)
    check_promise(wait - caught.value.retry_after_seconds, JOB, promise_seconds=90.0)


def test_a_job_longer_than_the_promise_is_let_in_when_nothing_is_before_it():
    check_promise(0.0, StageSeconds(denoise=500.0), promise_seconds=90.0)
