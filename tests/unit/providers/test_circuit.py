"""The rules of the circuit breaker: when it opens, how it closes again, and the retry budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmgate.errors import ProviderError, ProviderRefused, ProviderThrottled, ProviderUnusable
from filmgate.providers.circuit import Circuit, Outcome, Permit, Phase, Signal
from filmgate.settings import RoutingSettings

SETTINGS = RoutingSettings()
GOOD, FAILED = Outcome(Signal.ANSWERED, 0.2), Outcome(Signal.FAILED, 0.1)
BAD = [FAILED, Outcome(Signal.ANSWERED, 16.0)]


def record(circuit, *outcomes, now=0.0, permit=Permit(), chance=1.0):
    for outcome in outcomes:
        circuit = circuit.record(outcome, permit, now, SETTINGS, chance)
    return circuit


def opened(now=0.0, chance=1.0):
    return record(Circuit(), *[FAILED] * 5, now=now, chance=chance)


@pytest.mark.parametrize("bad", BAD, ids=["failed", "slow"])
def test_five_failures_of_any_kind_among_ten_results_open_it(bad):
    assert record(Circuit(), *[bad] * 4).phase is Phase.CLOSED
    assert record(Circuit(), *[bad] * 5).phase is Phase.OPEN
    assert record(Circuit(), *[bad, GOOD] * 4).phase is Phase.CLOSED
    assert record(Circuit(), *[bad, GOOD] * 4, bad).phase is Phase.OPEN


def test_old_failures_do_not_count():
    assert record(record(Circuit(), *[FAILED] * 4, *[GOOD] * 10), FAILED).phase is Phase.CLOSED
    assert record(record(Circuit(), *[FAILED] * 4), FAILED, now=200.0).phase is Phase.CLOSED


def test_an_unusable_provider_opens_it_at_once():
    assert record(Circuit(), Outcome(Signal.UNUSABLE)).phase is Phase.OPEN


def test_no_call_passes_while_it_is_open_and_then_one_probe_does():
    circuit = opened(chance=1.0)
    assert circuit.admit(4.9, SETTINGS)[1] is None
    probing, permit = circuit.admit(5.0, SETTINGS)
    assert (probing.phase, permit.probe) == (Phase.HALF_OPEN, 1)
    assert probing.admit(5.0, SETTINGS)[1] is None
    assert probing.admit(64.9, SETTINGS, is_retry=True)[1] is None


def test_a_good_probe_closes_it_and_a_bad_one_doubles_the_delay():
    probing, permit = opened().admit(5.0, SETTINGS)
    assert record(probing, GOOD, now=6.0, permit=permit).phase is Phase.CLOSED
    delays, circuit, now = [], probing, 5.0
    for _ in range(9):
        circuit = record(circuit, FAILED, now=now, permit=permit)
        delays.append(circuit.retry_at - now)
        now = circuit.retry_at
        circuit, permit = circuit.admit(now, SETTINGS)
    assert delays == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 300.0, 300.0]


@given(st.floats(0, 1))
def test_jitter_keeps_the_delay_between_half_and_all_of_its_length(chance):
    assert 2.5 <= opened(chance=chance).retry_at <= 5.0


def test_a_lost_probe_is_followed_by_another_and_its_late_result_is_ignored():
    probing, lost = opened().admit(5.0, SETTINGS)
    second, permit = probing.admit(65.0, SETTINGS)
    assert permit.probe == 2
    assert record(second, GOOD, permit=lost, now=66.0) == second
    assert record(second, GOOD, permit=permit, now=66.0).phase is Phase.CLOSED


def test_results_of_earlier_calls_neither_close_nor_prolong_it():
    circuit = opened()
    assert record(circuit, GOOD, FAILED, now=1.0) == circuit
    probing, _ = circuit.admit(5.0, SETTINGS)
    assert record(probing, GOOD, FAILED, now=5.5) == probing


def test_a_released_probe_can_be_made_by_another_caller():
    probing, permit = opened().admit(5.0, SETTINGS)
    _, next_permit = probing.release(permit, 6.0).admit(6.0, SETTINGS)
    assert next_permit.probe == 2
    assert Circuit().release(Permit(), 1.0) == Circuit()


def test_a_clock_that_was_reset_does_not_keep_it_open():
    circuit = opened(now=1_000_000.0)
    assert circuit.admit(3.0, SETTINGS)[1] is not None


@given(st.lists(st.booleans(), max_size=300))
def test_retries_stay_below_a_tenth_of_the_first_calls_and_a_small_burst(calls):
    circuit, first_calls, retries = Circuit(), 0, 0
    for is_retry in calls:
        circuit, permit = circuit.admit(0.0, SETTINGS, is_retry=is_retry)
        first_calls += not is_retry
        retries += is_retry and permit is not None
        assert is_retry or permit is not None
    assert retries <= 0.1 * first_calls + 3 + 1e-6


@given(st.lists(st.tuples(st.sampled_from("asrlt"), st.sampled_from([GOOD, *BAD])), max_size=200))
def test_at_most_one_probe_runs_at_a_time(script):
    """a: admit; s: record a result for the newest permit; r: release it; l: lose it; t: time passes."""
    circuit, now, held, probing = Circuit(), 0.0, [], {}
    for letter, outcome in script:
        if letter == "a":
            circuit, permit = circuit.admit(now, SETTINGS)
            if permit is not None:
                held.append(permit)
                if permit.probe is not None:
                    assert all(ends_at <= now for ends_at in probing.values())
                    probing[permit.probe] = now + SETTINGS.probe_seconds
        elif letter == "t":
            now += 7.0
        elif held:
            permit = held.pop()
            if letter == "s":
                circuit = circuit.record(outcome, permit, now, SETTINGS, 0.5)
            elif letter == "r":
                circuit = circuit.release(permit, now)
            if letter != "l":
                probing.pop(permit.probe, None)
        assert len(circuit.recent) <= 10


def test_the_pace_follows_the_measured_durations_within_bounds():
    circuit = Circuit()
    for _ in range(30):
        circuit = circuit.observe(180.0, 90.0)
    assert circuit.pace == pytest.approx(2.0, abs=0.01)
    assert circuit.observe(1e9, 90.0).pace < 6.0
    assert circuit.observe(5.0, 0.0) == circuit


@pytest.mark.parametrize(
    ("error", "signal"),
    [
        (None, Signal.ANSWERED),
        (ProviderRefused("content"), Signal.ANSWERED),
        (ProviderThrottled("quota"), Signal.FAILED),
        (ProviderUnusable("end of life"), Signal.UNUSABLE),
        (ProviderError("503"), Signal.FAILED),
        (TimeoutError(), Signal.FAILED),
        (OSError("reset"), Signal.FAILED),
    ],
)
def test_every_error_has_a_signal(error, signal):
    assert Outcome.of(error, 0.5) == Outcome(signal, 0.5)
