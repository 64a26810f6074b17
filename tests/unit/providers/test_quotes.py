"""Quotes: what the provider would do with a job, cached by shape and checked against the policy."""

from dataclasses import replace

import pytest

from filmgate.jobs import ManagedPolicy, RouteReason, Source, SourceKind
from filmgate.providers.circuit import BreakerHealth, Phase
from filmgate.providers.quotes import ProviderQuotes
from tests.fake_provider import MODEL, FakeProvider
from tests.tickets import SPEC

ALLOWED = ManagedPolicy(is_allowed=True)


class FixedBreaker:
    """A breaker whose health the test sets."""

    def __init__(self):
        self.current = BreakerHealth()

    def health(self):
        return self.current


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
def quotes(provider, breaker, clock):
    quotes = ProviderQuotes(provider, breaker, clock=lambda: clock[0])
    quotes.refresh()
    return quotes


def test_a_quote_has_time_price_and_changes(quotes, provider):
    provider.size = (1280, 720)
    quote = quotes.quote(SPEC, replace(ALLOWED, may_resize=True), 0)
    assert (quote.provider, quote.model, quote.seconds, quote.usd) == ("elsewhere", "ray", 30.0, 1.0)
    assert quote.changes == ("size 128x128 -> 1280x720",)
    assert quote.obstacle is None


def test_a_provider_that_never_listed_its_models_is_not_used(provider, breaker):
    provider.is_down = True
    quotes = ProviderQuotes(provider, breaker)
    quotes.refresh()
    assert quotes.quote(SPEC, ALLOWED, 0).obstacle[0] is RouteReason.PROVIDER_UNHEALTHY
    provider.is_down = False
    quotes.refresh()
    assert quotes.quote(SPEC, ALLOWED, 0).obstacle is None


def test_models_are_listed_again_after_a_minute(quotes, provider, clock):
    quotes.quote(SPEC, ALLOWED, 0)
    provider.model = replace(MODEL, expected_seconds=6000.0)
    quotes.refresh()
    assert quotes.quote(SPEC, ALLOWED, 0).seconds == 30.0
    clock[0] += 61
    quotes.refresh()
    assert quotes.quote(SPEC, ALLOWED, 0).seconds == 6000.0


def test_health_and_pace_come_from_the_breaker(quotes, breaker):
    breaker.current = BreakerHealth(Phase.OPEN, can_probe=True, pace=2.0)
    assert quotes.health.is_healthy, "as of the last refresh"
    quotes.refresh()
    assert (quotes.health.is_healthy, quotes.health.can_probe, quotes.health.state) == (False, True, "open")
    assert quotes.quote(SPEC, ALLOWED, 0).seconds == 60.0


def test_jobs_beyond_the_providers_concurrency_wait_a_round(quotes, provider, clock):
    provider.model = replace(MODEL, max_concurrent=3)
    clock[0] += 61
    quotes.refresh()
    rounds = [quotes.quote(SPEC, ALLOWED, ahead).rounds_before for ahead in range(7)]
    assert rounds == [0, 0, 0, 1, 1, 1, 2]
    assert quotes.quote(SPEC, ALLOWED, 6).seconds == 90.0


def test_longer_clips_take_proportionally_longer(quotes, provider, clock):
    provider.model = replace(MODEL, seconds=(6.0, 12.0, 120.0), expected_seconds=90.0)
    clock[0] += 61
    quotes.refresh()
    assert quotes.quote(replace(SPEC, seconds=120.0), ALLOWED, 0).seconds == 1800.0


def test_the_cache_contains_no_prompt_and_serves_jobs_of_the_same_shape(quotes, provider):
    quotes.quote(replace(SPEC, prompt="the secret plan"), ALLOWED, 0)
    calls = provider.adaptations
    quotes.quote(replace(SPEC, prompt="another  plan!!", seed=99), ALLOWED, 0)
    assert provider.adaptations == calls
    assert "secret" not in repr(quotes._cache)


@pytest.mark.parametrize(
    "fields", [{"seed": None}, {"quality": "draft"}, {"lora": "style:1"}, {"extra": {"camera": "still"}}]
)
def test_a_job_that_differs_in_more_than_its_text_is_adapted_itself(quotes, provider, fields):
    quotes.quote(SPEC, ALLOWED, 0)
    calls = provider.adaptations
    quotes.quote(replace(SPEC, **fields), ALLOWED, 0)
    assert provider.adaptations > calls


def test_the_cache_is_bounded(quotes):
    for number in range(5000):
        quotes.quote(replace(SPEC, width=number + 1), ALLOWED, 0)
    assert len(quotes._cache) <= 4096


def test_a_change_the_policy_forbids_and_one_that_is_impossible_are_different_reasons(quotes, provider):
    provider.size = (1280, 720)
    assert quotes.quote(SPEC, ALLOWED, 0).obstacle[0] is RouteReason.POLICY
    edit = replace(SPEC, source=Source(SourceKind.EDIT))
    assert quotes.quote(edit, ALLOWED, 0).obstacle[0] is RouteReason.PROVIDER_CANNOT


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"regions": ("eu-west-1",)}, "region us-west-2"),
        ({"max_usd_per_clip": 0.5}, "1 USD exceeds the tenant's limit"),
    ],
)
def test_a_rendition_that_the_policy_forbids_is_never_quoted(quotes, policy, message):
    """The fake provider ignores regions and prices: the quote checks them again."""
    reason, text = quotes.quote(SPEC, replace(ALLOWED, **policy), 0).obstacle
    assert reason is RouteReason.POLICY
    assert message in text
