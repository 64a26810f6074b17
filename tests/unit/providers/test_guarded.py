"""Provider calls under the breaker: which calls pass, and which results are recorded."""

from dataclasses import dataclass, field

import pytest

from filmgate.errors import ProviderCannot, ProviderError, ProviderThrottled, QueueUnavailable
from filmgate.providers.circuit import BreakerHealth, Permit, Phase, Signal
from filmgate.providers.managed.guarded import BreakerOpen, GuardedProvider

PERMIT = Permit(probe=3)


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


def test_successful_polls_are_recorded_once_per_second_and_failed_ones_always():
    breaker, now = RecordingBreaker(), [100.0]
    guarded = GuardedProvider(breaker, clock=lambda: now[0])
    for _ in range(50):
        guarded.poll(lambda: None)
        now[0] += 0.1
    assert breaker.recorded == [(Signal.ANSWERED, Permit())] * 5
    for _ in range(3):
        with pytest.raises(ProviderError):
            guarded.poll(failing(ProviderError("broken")))
    assert breaker.recorded[5:] == [(Signal.FAILED, Permit())] * 3


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
