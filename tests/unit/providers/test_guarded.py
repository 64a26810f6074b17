"""Provider calls under the breaker: which calls pass, and which results are recorded."""

import random
from dataclasses import dataclass, field

import pytest

from filmgate.errors import (
    ProviderCannot,
    ProviderError,
    ProviderThrottled,
    ProviderUnusable,
    QueueUnavailable,
)
from filmgate.providers.circuit import BreakerHealth, Circuit, Permit, Phase, Signal
from filmgate.providers.managed.guarded import BreakerOpen, GuardedProvider
from filmgate.settings import RoutingSettings

PERMIT = Permit(probe=3)
POLLS_PER_SECOND = 60  # 300 jobs, each polled every 5 seconds


@dataclass
class RecordingBreaker:
    """A breaker that keeps what is recorded."""

    permit: Permit | None = PERMIT
    phase: Phase = Phase.CLOSED
    recorded: list = field(default_factory=list)
    is_retry: bool | None = None

    def admit(self, *, is_retry):
        self.is_retry = is_retry
        return self.permit

    def record(self, outcome, permit):
        self.recorded.append((outcome.signal, permit))

    def release(self, permit):
        self.recorded.append(("released", permit))

    def health(self):
        return BreakerHealth(self.phase)


def failing(error):
    def call():
        raise error

    return call


def test_a_good_start_is_recorded_with_its_permit():
    breaker = RecordingBreaker()
    assert GuardedProvider(breaker).start(lambda: "id", is_retry=True) == "id"
    assert (breaker.recorded, breaker.is_retry) == ([(Signal.ANSWERED, PERMIT)], True)


@pytest.mark.parametrize("error", [ProviderThrottled("no capacity"), ProviderError("broken")])
def test_a_failed_start_is_recorded_and_raised(error):
    breaker = RecordingBreaker()
    with pytest.raises(type(error)):
        GuardedProvider(breaker).start(failing(error), is_retry=False)
    assert breaker.recorded == [(Signal.FAILED, PERMIT)]


@pytest.mark.parametrize("error", [ProviderCannot("a local check"), RuntimeError("a bug")])
def test_an_error_before_the_call_releases_the_permit(error):
    breaker = RecordingBreaker()
    with pytest.raises(type(error)):
        GuardedProvider(breaker).start(failing(error), is_retry=False)
    assert breaker.recorded == [("released", PERMIT)]


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.HALF_OPEN])
def test_the_provider_is_not_called_without_a_permit(phase):
    breaker = RecordingBreaker(permit=None, phase=phase)
    with pytest.raises(BreakerOpen):
        GuardedProvider(breaker).start(failing(AssertionError()), is_retry=False)


def test_a_used_up_retry_budget_is_not_an_open_breaker():
    with pytest.raises(ProviderThrottled) as caught:
        GuardedProvider(RecordingBreaker(permit=None)).start(failing(AssertionError()), is_retry=True)
    assert not isinstance(caught.value, BreakerOpen)


def poll_failing(guarded, error):
    with pytest.raises(type(error)):
        guarded.poll(failing(error))


def test_the_first_poll_of_each_second_is_recorded_whatever_its_result():
    breaker, now = RecordingBreaker(), [100.0]
    guarded = GuardedProvider(breaker, clock=lambda: now[0])
    for is_failing in (False, True, True, False):
        for number in range(8):
            if is_failing is (number == 0):
                poll_failing(guarded, ProviderError("broken"))
            else:
                guarded.poll(lambda: None)
            now[0] += 0.125
    signals = [Signal.ANSWERED, Signal.FAILED, Signal.FAILED, Signal.ANSWERED]
    assert breaker.recorded == [(signal, Permit()) for signal in signals]


def test_a_poll_that_finds_the_provider_unusable_is_recorded_at_once():
    breaker = RecordingBreaker()
    guarded = GuardedProvider(breaker, clock=lambda: 100.0)
    guarded.poll(lambda: None)
    poll_failing(guarded, ProviderUnusable("expired credentials"))
    assert breaker.recorded == [(Signal.ANSWERED, Permit()), (Signal.UNUSABLE, Permit())]


@dataclass
class CircuitBreaker:
    """The real circuit in memory, on a clock that the test moves."""

    now: float = 100.0
    circuit: Circuit = field(default_factory=Circuit)

    def record(self, outcome, permit):
        self.circuit = self.circuit.record(outcome, permit, self.now, RoutingSettings(), 0.5)

    def poll(self, guarded, seconds, share_of_failures, chance):
        """Poll for this long or until the breaker opens. Returns the simulated seconds."""
        began = self.now
        for _ in range(seconds * POLLS_PER_SECOND):
            if chance.random() < share_of_failures:
                poll_failing(guarded, ProviderError("broken"))
            else:
                guarded.poll(lambda: None)
            if self.circuit.phase is not Phase.CLOSED:
                break
            self.now += 1 / POLLS_PER_SECOND
        return self.now - began


def guarded_by(breaker):
    return GuardedProvider(breaker, clock=lambda: breaker.now)


@pytest.mark.parametrize("seed", range(3))
def test_a_few_failed_polls_among_many_do_not_open_the_breaker(seed):
    breaker = CircuitBreaker()
    assert breaker.poll(guarded_by(breaker), 600, 0.02, random.Random(seed)) == pytest.approx(600)
    assert breaker.circuit.phase is Phase.CLOSED


def test_a_provider_that_fails_every_poll_opens_the_breaker_within_seconds():
    breaker, chance = CircuitBreaker(), random.Random(1)
    guarded = guarded_by(breaker)
    breaker.poll(guarded, 60, 0.0, chance)
    # The fifth of one failure per second.
    assert 3.5 < breaker.poll(guarded, 60, 1.0, chance) < 6.0
    assert breaker.circuit.phase is Phase.OPEN


class BreakerWithoutDatabase(RecordingBreaker):
    """A breaker whose database goes away during the call."""

    def record(self, outcome, permit):
        raise QueueUnavailable("down")

    def release(self, permit):
        raise QueueUnavailable("down")


def test_a_result_that_cannot_be_recorded_does_not_replace_the_answer():
    guarded = GuardedProvider(BreakerWithoutDatabase())
    assert guarded.start(lambda: "id", is_retry=False) == "id"
    assert guarded.poll(lambda: "done") == "done"


@pytest.mark.parametrize("error", [ProviderError("broken"), RuntimeError("a bug")])
def test_a_result_that_cannot_be_recorded_does_not_replace_the_error(error):
    with pytest.raises(type(error)):
        GuardedProvider(BreakerWithoutDatabase()).start(failing(error), is_retry=False)
