"""The router gathers honestly: dead workers, unknown offers, prompts that must not linger, bursts."""

from dataclasses import replace

import pytest

from filmgate.jobs import (
    JobState,
    ManagedPolicy,
    Route,
    RouteReason,
    Source,
    SourceKind,
    StageSeconds,
    TenantId,
    WorkerId,
)
from filmgate.providers.circuit import Health, Phase
from filmgate.scheduling.base import Backlog, Load, WorkerStatus
from filmgate.scheduling.router import Arrival, Router
from filmgate.scheduling.routes import AT_HOME
from filmgate.settings import RoutingSettings
from tests.fake_provider import OFFER, FakeProvider
from tests.tickets import PREDICTED, SPEC

ALLOWED = ManagedPolicy(is_allowed=True)


MANNED = Backlog((), None, (WorkerStatus(WorkerId("m"), Route.MANAGED, ("flipbook",), 0.0),))


class FixedBreaker:
    """A breaker whose health the test sets."""

    def __init__(self):
        self.state = Health()

    def health(self):
        return self.state


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def provider():
    return FakeProvider()


@pytest.fixture
def breaker():
    return FixedBreaker()


@pytest.fixture
def router(provider, breaker, clock):
    router = Router(provider, breaker, RoutingSettings(), gpus=4, clock=lambda: clock[0])
    router.refresh(MANNED)
    return router


def worker(name="gpu-1", silent=0.0, route=Route.GPU, models=("flipbook",)):
    return WorkerStatus(WorkerId(name), route, models, silent)


def backlog(*workers, managed=0):
    load = Load(TenantId("acme"), Route.MANAGED, "flipbook", JobState.QUEUED, managed, 10.0)
    return Backlog((load,) if managed else (), None, workers)


def arrival(wait=500.0, policy=ALLOWED, **spec):
    return Arrival(policy, replace(SPEC, **spec), PREDICTED, 90.0, wait)


def test_only_workers_that_were_heard_of_and_serve_the_model_count(router, clock):
    clock[0] += 60
    here = backlog(worker("a"), worker("b", silent=29.0), worker("c", silent=31.0))
    assert router.count_gpus(here, "flipbook") == 2
    assert router.count_gpus(here, "wan") == 0
    assert router.count_gpus(backlog(worker(route=Route.MANAGED)), "flipbook") == 0


def test_a_new_server_believes_its_settings_until_it_could_have_heard_of_somebody(router, clock):
    assert router.count_gpus(backlog(), "flipbook") == 4
    clock[0] += 31
    assert router.count_gpus(backlog(), "flipbook") == 0
    assert router.choose(arrival(wait=0.0), backlog()).route is Route.MANAGED


def test_the_wait_is_for_the_gpus_that_are_there(router):
    busy = arrival(wait=20.0)
    assert router.choose(busy, backlog(*(worker(str(n)) for n in range(4)))) is AT_HOME
    assert router.choose(busy, backlog(worker())).routing.reason is RouteReason.DEADLINE


def test_a_provider_that_never_said_what_it_offers_is_not_used(provider, breaker):
    provider.is_down = True
    router = Router(provider, breaker, RoutingSettings(), gpus=1)
    router.refresh(MANNED)
    choice = router.choose(arrival(), backlog(worker()))
    assert (choice.route, choice.routing.reason) == (Route.GPU, RouteReason.PROVIDER_UNHEALTHY)
    provider.is_down = False
    router.refresh(MANNED)
    assert router.choose(arrival(), backlog(worker())).route is Route.MANAGED


def test_with_nobody_to_take_jobs_there_the_provider_is_no_way_out(router, clock):
    router.refresh(backlog())
    assert router.is_manned, "a new server believes that a worker is on its way"
    clock[0] += 31
    router.refresh(backlog(worker("m", silent=31.0, route=Route.MANAGED)))
    assert not router.is_manned
    choice = router.choose(arrival(), backlog(worker()))
    assert (choice.route, choice.routing.reason) == (Route.GPU, RouteReason.PROVIDER_UNHEALTHY)
    assert choice.routing.detail.endswith("no worker of the managed route is alive")
    router.refresh(MANNED)
    assert router.choose(arrival(), backlog(worker())).route is Route.MANAGED


def test_offers_are_asked_for_again_now_and_then(router, provider, clock):
    provider.offer = replace(OFFER, expected_seconds=6000.0)
    router.choose(arrival(), backlog(worker()))
    clock[0] += 61
    router.refresh(MANNED)
    choice = router.choose(arrival(), backlog(worker()))
    assert choice.routing.reason is RouteReason.PROVIDER_SLOWER


def test_the_breaker_keeps_requests_home_even_when_a_probe_is_due(router, breaker):
    breaker.state = Health(Phase.OPEN, can_probe=True)
    router.refresh(MANNED)
    assert router.choose(arrival(), backlog(worker())).routing.reason is RouteReason.PROVIDER_UNHEALTHY


def test_a_burst_within_one_snapshot_does_not_pass_the_providers_room(router, provider, clock):
    provider.offer = replace(OFFER, max_concurrent=3, expected_seconds=60.0)
    clock[0] += 61
    router.refresh(MANNED)
    snapshot = backlog(worker(), managed=1)
    routes = [router.choose(arrival(), snapshot).route for _ in range(5)]
    assert routes == [Route.MANAGED] * 2 + [Route.GPU] * 3
    assert router.choose(arrival(), backlog(worker())).route is Route.MANAGED


def test_what_is_remembered_of_a_shape_holds_no_text_and_serves_the_next_job(router, provider):
    router.choose(arrival(prompt="the secret plan"), backlog(worker()))
    asked = provider.adaptations
    router.choose(arrival(prompt="another  plan!!", seed=99), backlog(worker()))
    assert provider.adaptations == asked
    assert "secret" not in repr(router._shapes)
    assert all("secret" not in found.spec.prompt for found in router._shapes.values())


def test_what_the_policy_forbids_and_what_nobody_can_render_are_told_apart(router, provider):
    provider.size = (1280, 720)
    assert router.choose(arrival(), backlog(worker())).routing.reason is RouteReason.POLICY
    resized = arrival(policy=replace(ALLOWED, may_resize=True))
    chosen = router.choose(resized, backlog(worker()))
    assert chosen.routing.changes == ("size 128x128 -> 1280x720",)
    remix = arrival(source=Source(SourceKind.EDIT))
    assert router.choose(remix, backlog(worker())).routing.reason is RouteReason.PROVIDER_CANNOT


def test_the_memory_of_shapes_is_bounded(router):
    for n in range(5000):
        router.survey(replace(SPEC, width=n + 1), ALLOWED, 0)
    assert len(router._shapes) <= 4096


def test_a_job_that_is_in_time_costs_no_survey(router, provider):
    idle = replace(arrival(wait=0.0), predicted=StageSeconds(denoise=1.0))
    assert router.choose(idle, backlog(worker())) is AT_HOME
    assert provider.adaptations == 0
