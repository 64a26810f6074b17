"""The choice of a route: never against the policy, never for a slower provider, always with a reason."""

import math
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from filmgate.jobs import ManagedPolicy, Route, RouteReason, Routing
from filmgate.scheduling.routes import ON_GPU, Case, ProviderHealth, Quote, choose
from filmgate.settings import RoutingSettings

SETTINGS = RoutingSettings()
ALLOWED = ManagedPolicy(is_allowed=True)
QUOTE = Quote("elsewhere", seconds=40.0, usd=1.0, model="ray")


def case(wait=0.0, work=10.0, left=90.0, **fields):
    return Case(1000.0, 1000.0 + left, wait, work, **{"policy": ALLOWED, **fields})


def decide(quote=QUOTE, **fields):
    choice = choose(case(**fields), quote, SETTINGS)
    return choice.route, choice.routing.reason


def test_a_job_that_will_be_in_time_stays_without_a_reason():
    assert choose(case(wait=20.0), QUOTE, SETTINGS) == ON_GPU
    assert ON_GPU.routing == Routing()


def test_a_job_that_would_miss_its_deadline_leaves_with_the_numbers():
    choice = choose(case(wait=200.0), QUOTE, SETTINGS)
    routing = choice.routing
    assert (choice.route, routing.provider, routing.provider_model) == (Route.MANAGED, "elsewhere", "ray")
    assert routing.reason is RouteReason.DEADLINE
    assert routing.detail == (
        "your GPUs take 210 s (200 s of it waiting), 90 s until the deadline; elsewhere takes 40 s"
    )
    assert (routing.usd, routing.expected_seconds, routing.decided_at) == (1.0, 40.0, 1000.0)


def test_the_safety_factor_applies_near_the_deadline():
    assert decide(wait=64.0)[0] is Route.GPU
    assert decide(wait=66.0)[0] is Route.MANAGED


def test_a_job_stays_when_the_provider_is_slower_than_waiting():
    assert decide(replace(QUOTE, seconds=240.0), wait=200.0) == (Route.GPU, RouteReason.PROVIDER_SLOWER)


def test_a_job_that_is_late_on_both_routes_stays_until_it_is_old():
    assert decide(wait=200.0, left=20.0) == (Route.GPU, RouteReason.TOO_LATE)
    assert decide(wait=200.0, left=-31.0, waited_seconds=121.0) == (Route.MANAGED, RouteReason.AGE)


def test_an_old_job_leaves_only_for_a_faster_provider_that_starts_it_at_once():
    assert decide(wait=5.0, left=900.0, waited_seconds=121.0) == (Route.GPU, RouteReason.PROVIDER_SLOWER)
    assert decide(wait=50.0, left=900.0, waited_seconds=121.0) == (Route.MANAGED, RouteReason.AGE)
    full = replace(QUOTE, rounds_before=1)
    assert decide(wait=500.0, left=-31.0, waited_seconds=121.0)[0] is Route.MANAGED
    assert decide(full, wait=500.0, left=-31.0, waited_seconds=121.0) == (Route.GPU, RouteReason.TOO_LATE)


def test_with_no_gpu_worker_alive_a_late_provider_is_used_if_it_starts_at_once():
    assert decide(wait=math.inf, left=20.0) == (Route.MANAGED, RouteReason.DEADLINE)
    full = replace(QUOTE, rounds_before=1)
    assert decide(full, wait=math.inf, left=20.0) == (Route.GPU, RouteReason.TOO_LATE)
    choice = choose(case(wait=math.inf), QUOTE, SETTINGS)
    assert choice.routing.detail.startswith("no GPU worker is alive, 90 s until the deadline")


def test_an_unhealthy_provider_gets_one_probe_and_no_other_job():
    ill = replace(QUOTE, health=ProviderHealth(is_healthy=False, state="open"))
    due = replace(QUOTE, health=ProviderHealth(is_healthy=False, can_probe=True, state="half_open"))
    assert decide(ill, wait=500.0, may_probe=True) == (Route.GPU, RouteReason.PROVIDER_UNHEALTHY)
    assert decide(due, wait=500.0) == (Route.GPU, RouteReason.PROVIDER_UNHEALTHY)
    assert decide(due, wait=500.0, may_probe=True)[0] is Route.MANAGED


def test_no_permission_and_an_obstacle_are_different_reasons():
    assert decide(wait=500.0, policy=ManagedPolicy()) == (Route.GPU, RouteReason.POLICY)
    cannot = Quote("elsewhere", obstacle=(RouteReason.PROVIDER_CANNOT, "512x512 is too small"))
    choice = choose(case(wait=500.0), cannot, SETTINGS)
    assert choice.routing.reason is RouteReason.PROVIDER_CANNOT
    assert choice.routing.detail.endswith("512x512 is too small")


waits = st.floats(0, 5000) | st.just(math.inf)
quotes = st.builds(
    Quote,
    provider=st.just("elsewhere"),
    health=st.builds(ProviderHealth, st.booleans(), st.booleans()),
    seconds=st.floats(1, 2000),
    rounds_before=st.integers(0, 3),
    usd=st.floats(0, 3),
    obstacle=st.none() | st.just((RouteReason.POLICY, "not allowed")),
)
cases = st.builds(
    case,
    wait=waits,
    work=st.floats(0.1, 500),
    left=st.floats(-500, 1000),
    policy=st.builds(ManagedPolicy, is_allowed=st.booleans()),
    waited_seconds=st.floats(0, 300),
    may_probe=st.booleans(),
)


@given(cases, quotes)
def test_a_job_leaves_only_with_permission_and_for_a_faster_quote_without_obstacle(case, quote):
    if choose(case, quote, SETTINGS).route is Route.MANAGED:
        assert case.policy.is_allowed
        assert quote.obstacle is None
        assert quote.seconds < case.gpu_seconds


@given(cases, quotes)
def test_every_choice_but_the_default_has_a_reason_and_numbers(case, quote):
    choice = choose(case, quote, SETTINGS)
    if choice != ON_GPU:
        assert choice.routing.reason is not RouteReason.DEFAULT
        assert "s until the deadline" in choice.routing.detail
        assert choice.routing.decided_at == case.now
    leaving = {RouteReason.DEADLINE, RouteReason.AGE}
    assert (choice.routing.reason in leaving) == (choice.route is Route.MANAGED)


@given(cases, quotes, waits)
def test_a_longer_wait_never_keeps_a_job_that_would_leave(case, quote, longer):
    assume(longer >= case.gpu_wait_seconds)
    worse = replace(case, gpu_wait_seconds=longer)
    if choose(case, quote, SETTINGS).route is Route.MANAGED:
        assert choose(worse, quote, SETTINGS).route is Route.MANAGED
