"""Calls under the breaker: who may start, and what is told about it."""

from dataclasses import dataclass, field

import pytest

from filmgate.errors import ProviderCannot, ProviderError, ProviderThrottled
from filmgate.providers.circuit import Health, Permit, Phase, Signal
from filmgate.providers.managed.guarded import BreakerOpen, Guard

PERMIT = Permit(probe=3)


@dataclass
class Notes:
    """A breaker that writes down what it is told."""

    permit: Permit | None = PERMIT
    phase: Phase = Phase.CLOSED
    told: list = field(default_factory=list)
    is_retry: bool | None = None

    def admit(self, *, is_retry):
        self.is_retry = is_retry
        return self.permit

    def record(self, outcome, permit):
        self.told.append((outcome.signal, permit))

    def release(self, permit):
        self.told.append(("released", permit))

    def health(self):
        return Health(self.phase)


def failing(error):
    def call():
        raise error

    return call


def test_a_good_start_is_told_with_its_permit():
    notes = Notes()
    assert Guard(notes).start(lambda: "id", is_retry=True) == "id"
    assert (notes.told, notes.is_retry) == ([(Signal.ANSWERED, PERMIT)], True)


@pytest.mark.parametrize(
    ("error", "signal"),
    [(ProviderThrottled("no room"), Signal.THROTTLED), (ProviderError("broken"), Signal.FAILED)],
)
def test_a_bad_start_is_told_and_raised(error, signal):
    notes = Notes()
    with pytest.raises(type(error)):
        Guard(notes).start(failing(error), is_retry=False)
    assert notes.told == [(signal, PERMIT)]


@pytest.mark.parametrize("error", [ProviderCannot("our own finding"), RuntimeError("a bug of ours")])
def test_what_never_reached_the_provider_says_nothing_about_it(error):
    notes = Notes()
    with pytest.raises(type(error)):
        Guard(notes).start(failing(error), is_retry=False)
    assert notes.told == [("released", PERMIT)]


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.HALF_OPEN])
def test_without_leave_nobody_is_called(phase):
    with pytest.raises(BreakerOpen):
        Guard(Notes(permit=None, phase=phase)).start(failing(AssertionError()), is_retry=False)


def test_a_spent_retry_budget_is_not_an_open_breaker():
    with pytest.raises(ProviderThrottled) as caught:
        Guard(Notes(permit=None)).start(failing(AssertionError()), is_retry=True)
    assert not isinstance(caught.value, BreakerOpen)


def test_good_polls_are_told_once_a_second_and_bad_ones_always():
    notes, now = Notes(), [100.0]
    guard = Guard(notes, clock=lambda: now[0])
    for _ in range(50):
        guard.look(lambda: None)
        now[0] += 0.1
    assert notes.told == [(Signal.ANSWERED, Permit())] * 5
    for _ in range(3):
        with pytest.raises(ProviderError):
            guard.look(failing(ProviderError("broken")))
    assert notes.told[5:] == [(Signal.FAILED, Permit())] * 3
