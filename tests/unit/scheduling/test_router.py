"""The router combines the forecast with the provider's quotes."""

from dataclasses import replace

import pytest

from filmgate.jobs import JobId, ManagedPolicy, Route, RouteReason, TenantId, WorkerId
from filmgate.scheduling.forecast import forecast
from filmgate.scheduling.router import Router
from filmgate.scheduling.routes import ON_GPU, ProviderHealth, Quote
from filmgate.scheduling.simulation import Slot
from filmgate.scheduling.snapshot import QueuedJob, Snapshot
from filmgate.scheduling.workers import WorkerStatus
from filmgate.settings import RoutingSettings
from tests.tickets import make_ticket

ALLOWED = ManagedPolicy(is_allowed=True)
MANAGED = WorkerStatus(WorkerId("managed-1"), Route.MANAGED, ("flipbook",))


class FakeRoute:
    """A provider that takes 30 s per clip, for `concurrency` clips at once."""

    health = ProviderHealth()

    def __init__(self, concurrency=1000):
        self.concurrency = concurrency
        self.jobs_ahead = []

    def refresh(self):
        pass

    def quote(self, spec, policy, jobs_ahead):
        self.jobs_ahead.append(jobs_ahead)
        rounds = jobs_ahead // self.concurrency
        return Quote("elsewhere", self.health, seconds=60.0 * (1 + rounds), rounds_before=rounds, usd=1.0)


def request(wait=500.0, policy=ALLOWED, **fields):
    """The arguments of `choose`: a ticket, what its tenant allows, and its slot on our own GPUs."""
    return make_ticket(**fields), policy, Slot(1, wait, wait + 10.0)


def snapshot(*workers, managed=0):
    queued = tuple(
        QueuedJob(JobId(f"job-{n}"), TenantId("acme"), Route.MANAGED, "flipbook", 30.0, 30.0, 90.0, seq=n)
        for n in range(managed)
    )
    return Snapshot(1000.0, queued, workers=workers)


@pytest.fixture
def managed():
    return FakeRoute()


@pytest.fixture
def router(managed):
    return Router(managed, RoutingSettings())


def test_a_request_that_is_in_time_needs_no_quote(router, managed):
    quick = request(wait=0.0, gpu_seconds=1.0)
    assert router.choose(*quick, forecast(snapshot(MANAGED))) is ON_GPU
    assert managed.jobs_ahead == []


def test_a_request_that_would_be_late_goes_to_the_provider(router):
    choice = router.choose(*request(), forecast(snapshot(MANAGED)))
    assert (choice.route, choice.routing.reason) == (Route.MANAGED, RouteReason.DEADLINE)


def test_without_a_live_managed_worker_requests_stay(router, managed):
    choice = router.choose(*request(), forecast(snapshot()))
    assert (choice.route, choice.routing.reason) == (Route.GPU, RouteReason.PROVIDER_UNHEALTHY)
    assert choice.routing.detail.endswith("no live managed worker serves the model")
    others = replace(MANAGED, models=("wan",))
    assert router.choose(*request(), forecast(snapshot(others))).route is Route.GPU, "it would wait for ever"
    assert managed.jobs_ahead == []
    starting = forecast(snapshot(), expects_workers=True)
    assert router.choose(*request(), starting).route is Route.MANAGED


def test_requests_stay_while_the_breaker_is_open_even_if_a_probe_is_due(router, managed):
    managed.health = ProviderHealth(is_healthy=False, can_probe=True, state="open")
    choice = router.choose(*request(), forecast(snapshot(MANAGED)))
    assert choice.routing.reason is RouteReason.PROVIDER_UNHEALTHY


def test_a_burst_within_one_forecast_does_not_exceed_the_providers_concurrency():
    managed = FakeRoute(concurrency=3)
    router, current = Router(managed, RoutingSettings()), forecast(snapshot(MANAGED, managed=1))
    routes = [router.choose(*request(), current).route for _ in range(5)]
    assert routes == [Route.MANAGED] * 2 + [Route.GPU] * 3
    assert managed.jobs_ahead == [1, 2, 3, 3, 3]
    assert router.choose(*request(), forecast(snapshot(MANAGED))).route is Route.MANAGED


def test_the_policy_of_the_tenant_decides(router):
    denied = request(policy=ManagedPolicy())
    assert router.choose(*denied, forecast(snapshot(MANAGED))).routing.reason is RouteReason.POLICY
