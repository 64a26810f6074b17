"""The choice of route: never against the policy, never for something slower, always with a reason."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filmgate.jobs import ManagedPolicy, Route, RouteReason, Routing
from filmgate.providers.adaptation import obstacles
from filmgate.providers.base import Offer, Rendition
from filmgate.providers.circuit import Health, Phase
from filmgate.scheduling.routes import AT_HOME, Case, Home, Option, choose
from filmgate.settings import RoutingSettings
from tests.tickets import SPEC

SETTINGS = RoutingSettings()
ANYTHING = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
OFFER = Offer("elsewhere", "ray", "us-west-2", (), (), None, 0.5, 40.0, 4000, takes_image=False)
RENDITION = Rendition(OFFER, SPEC, (), 1.0)
OPTION = Option("elsewhere", Health(), RENDITION)


def case(wait=0.0, work=10.0, left=90.0, **fields):
    return Case(1000.0, 1000.0 + left, Home(wait, work), **{"policy": ANYTHING, "spec": SPEC, **fields})


def decide(option=OPTION, **fields):
    choice = choose(case(**fields), (option,), SETTINGS)
    return choice.route, choice.routing.reason


def test_a_job_that_will_be_in_time_stays_without_a_word():
    assert choose(case(wait=20.0), (OPTION,), SETTINGS) == AT_HOME
    assert AT_HOME.routing == Routing()


def test_a_job_that_would_miss_its_deadline_leaves_and_says_with_what_numbers():
    choice = choose(case(wait=200.0), (OPTION,), SETTINGS)
    assert choice == choose(case(wait=200.0), (OPTION,), SETTINGS)
    assert (choice.route, choice.routing.provider, choice.routing.offer) == (
        Route.MANAGED,
        "elsewhere",
        "ray",
    )
    assert choice.routing.reason is RouteReason.DEADLINE
    assert choice.routing.detail == (
        "home takes 210 s (200 s of it waiting), 90 s left; elsewhere takes 40 s"
    )
    assert (choice.routing.usd, choice.routing.decided_at) == (1.0, 1000.0)


def test_a_prediction_near_the_deadline_is_not_trusted():
    assert decide(wait=64.0)[0] is Route.GPU
    assert decide(wait=66.0)[0] is Route.MANAGED


def test_a_job_stays_where_the_provider_is_worse_than_waiting():
    slow = replace(OPTION, health=Health(pace=6.0))
    assert decide(slow, wait=200.0) == (Route.GPU, RouteReason.PROVIDER_SLOWER)


def test_a_job_late_at_both_stays_until_it_is_old():
    assert decide(wait=200.0, left=20.0) == (Route.GPU, RouteReason.TOO_LATE)
    assert decide(wait=200.0, left=-31.0, waited_seconds=121.0) == (Route.MANAGED, RouteReason.AGE)


def test_an_old_job_leaves_only_for_something_sooner_with_room_at_once():
    assert decide(wait=5.0, left=900.0, waited_seconds=121.0) == (Route.GPU, RouteReason.PROVIDER_SLOWER)
    assert decide(wait=50.0, left=900.0, waited_seconds=121.0) == (Route.MANAGED, RouteReason.AGE)
    few = replace(OPTION, rendition=replace(RENDITION, offer=replace(OFFER, max_concurrent=2)))
    full = replace(few, ahead=2)
    assert decide(few, wait=500.0, left=-31.0, waited_seconds=121.0)[0] is Route.MANAGED
    assert decide(full, wait=500.0, left=-31.0, waited_seconds=121.0) == (Route.GPU, RouteReason.TOO_LATE)


def test_a_provider_is_given_no_more_than_it_can_make_in_time():
    offer = replace(OFFER, max_concurrent=3, expected_seconds=30.0)
    option = replace(OPTION, rendition=replace(RENDITION, offer=offer))
    for wait, left, most in ((5000.0, 80.0, 6), (math.inf, 80.0, 6), (math.inf, 20.0, 3), (5000.0, 20.0, 0)):
        ahead = 0
        while decide(replace(option, ahead=ahead), wait=wait, left=left)[0] is Route.MANAGED:
            ahead += 1
        assert ahead == most


def test_with_no_gpu_alive_even_a_late_provider_is_better_than_none():
    assert decide(wait=math.inf, left=20.0) == (Route.MANAGED, RouteReason.DEADLINE)
    choice = choose(case(wait=math.inf), (OPTION,), SETTINGS)
    assert choice.routing.detail.startswith("no GPU worker is alive, 90 s left")


def test_a_provider_that_is_not_well_gets_one_probe_and_nothing_else():
    for phase in (Phase.OPEN, Phase.HALF_OPEN):
        ill = replace(OPTION, health=Health(phase))
        due = replace(OPTION, health=Health(phase, can_probe=True))
        assert decide(ill, wait=500.0, may_probe=True) == (Route.GPU, RouteReason.PROVIDER_UNHEALTHY)
        assert decide(due, wait=500.0) == (Route.GPU, RouteReason.PROVIDER_UNHEALTHY)
        assert decide(due, wait=500.0, may_probe=True)[0] is Route.MANAGED


def test_no_provider_and_no_permission_are_told_apart():
    assert choose(case(wait=500.0), (), SETTINGS).routing.reason is RouteReason.DISABLED
    assert decide(wait=500.0, policy=ManagedPolicy()) == (Route.GPU, RouteReason.POLICY)
    cannot = Option("elsewhere", Health(), None, (RouteReason.PROVIDER_CANNOT, "512x512 is too small"))
    choice = choose(case(wait=500.0), (cannot,), SETTINGS)
    assert choice.routing.reason is RouteReason.PROVIDER_CANNOT
    assert choice.routing.detail.endswith("512x512 is too small")


def test_longer_clips_take_a_provider_longer():
    offer = replace(OFFER, seconds=(6.0, 12.0, 120.0), expected_seconds=90.0)
    long = Rendition(offer, replace(SPEC, seconds=120.0), ("length 2 s -> 120 s",), 9.6)
    assert Option("reel", Health(pace=0.5), long).seconds == 900.0


def test_of_two_that_will_do_the_cheaper_is_taken_then_the_faster():
    dear = Option("dear", Health(), replace(RENDITION, usd=7.5))
    cheap = Option("cheap", Health(pace=1.5), replace(RENDITION, usd=0.5))
    quick = Option("quick", Health(), replace(RENDITION, usd=0.5))
    late = Option("late", Health(pace=3.0), replace(RENDITION, usd=0.1))
    chosen = choose(case(wait=500.0), (dear, late, cheap, quick), SETTINGS)
    assert chosen.routing.provider == "quick"


@pytest.mark.parametrize(
    ("policy", "changed", "words"),
    [
        ({"regions": ("eu-west-1",)}, {}, "region us-west-2"),
        ({"max_usd_per_clip": 0.5}, {}, "1 USD is more than the tenant pays"),
        ({"may_resize": False}, {"width": 1280, "height": 720}, "128x128 would become 1280x720"),
        ({"may_change_length": False}, {"seconds": 5.0}, "2 s would become 5 s"),
    ],
)
def test_a_rendition_beyond_the_policy_is_refused_whoever_proposed_it(policy, changed, words):
    option = replace(OPTION, rendition=replace(RENDITION, spec=replace(SPEC, **changed)))
    assert decide(option, wait=500.0)[0] is Route.MANAGED
    refused = choose(case(wait=500.0, policy=replace(ANYTHING, **policy)), (option,), SETTINGS)
    assert (refused.route, refused.routing.reason) == (Route.GPU, RouteReason.POLICY)
    assert words in refused.routing.detail


seconds = st.floats(0, 5000)
waits = seconds | st.just(math.inf)
policies = st.builds(
    ManagedPolicy,
    is_allowed=st.booleans(),
    regions=st.sampled_from([(), ("us-west-2",), ("eu-west-1",)]),
    max_usd_per_clip=st.none() | st.floats(0, 3),
    may_resize=st.booleans(),
    may_change_length=st.booleans(),
)
renditions = st.builds(
    lambda expected, width, length, most, usd: Rendition(
        replace(OFFER, expected_seconds=expected, max_concurrent=most),
        replace(SPEC, width=width, seconds=length),
        (),
        usd,
    ),
    expected=st.floats(1, 2000),
    width=st.sampled_from([128, 1280]),
    length=st.sampled_from([2.0, 2.1, 6.0]),
    most=st.none() | st.integers(1, 5),
    usd=st.floats(0, 3),
)
options = st.lists(
    st.builds(
        Option,
        provider=st.sampled_from("ab"),
        health=st.builds(Health, st.sampled_from(Phase), st.booleans(), st.floats(0.1, 20)),
        rendition=st.none() | renditions,
        ahead=st.integers(0, 20),
    ),
    max_size=3,
).map(tuple)
cases = st.builds(
    case,
    wait=waits,
    work=st.floats(0.1, 500),
    left=st.floats(-500, 1000),
    policy=policies,
    waited_seconds=st.floats(0, 300),
    may_probe=st.booleans(),
)


def taken(choice, options):
    return [o for o in options if o.rendition is not None and o.provider == choice.routing.provider]


@given(cases, options)
def test_never_managed_against_the_policy(case, options):
    choice = choose(case, options, SETTINGS)
    if choice.route is Route.MANAGED:
        assert case.policy.is_allowed
        assert any(not obstacles(case.spec, o.rendition, case.policy) for o in taken(choice, options))


@given(cases, options)
def test_never_managed_when_the_provider_would_finish_later_than_waiting(case, options):
    choice = choose(case, options, SETTINGS)
    if choice.route is Route.MANAGED:
        assert any(o.seconds < case.home.seconds for o in taken(choice, options))


@given(cases, options)
def test_there_is_always_a_reason_and_numbers_unless_the_job_stays_as_usual(case, options):
    choice = choose(case, options, SETTINGS)
    if choice != AT_HOME:
        assert choice.routing.reason is not RouteReason.DEFAULT
        assert "s left" in choice.routing.detail
        assert choice.routing.decided_at == case.now
    leaving = {RouteReason.DEADLINE, RouteReason.AGE}
    assert (choice.routing.reason in leaving) == (choice.route is Route.MANAGED)


@given(cases, options, waits)
def test_a_longer_wait_never_brings_a_job_back_home(case, options, longer):
    assume(longer >= case.home.wait_seconds)
    worse = replace(case, home=Home(longer, case.home.work_seconds))
    if choose(case, options, SETTINGS).route is Route.MANAGED:
        assert choose(worse, options, SETTINGS).route is Route.MANAGED
