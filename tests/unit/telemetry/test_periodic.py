"""Background tasks: a failure is logged and counted, and neither the task nor the other items stop."""

import pytest
from prometheus_client import CollectorRegistry

from filmgate.errors import QueueUnavailable
from filmgate.telemetry.periodic import FailureCounter, Periodic, attempt, attempt_each
from tests.waiting import wait_until


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def failures(registry):
    return FailureCounter(registry)


def count(registry, task):
    return registry.get_sample_value("filmgate_task_failures_total", {"task": task}) or 0.0


@pytest.mark.parametrize(
    "error",
    [QueueUnavailable("down"), ValueError("x"), KeyError("x"), AssertionError(), RecursionError(), OSError()],
    ids=lambda error: type(error).__name__,
)
def test_a_task_runs_again_after_any_exception(error, registry, failures):
    runs = []

    def fail_twice():
        runs.append(1)
        if len(runs) <= 2:
            raise error

    with Periodic("cleanup", fail_twice, 0.001, failures):
        wait_until(lambda: len(runs) >= 5, interval=0.001)
    assert count(registry, "cleanup") == 2


def test_a_stopped_task_does_not_run_again():
    runs = []
    with Periodic("cleanup", lambda: runs.append(1), 0.001):
        wait_until(lambda: runs, interval=0.001)
    seen = len(runs)
    with Periodic("other", lambda: runs.append(2), 0.001):
        wait_until(lambda: runs.count(2) > 3, interval=0.001)
    assert runs.count(1) == seen


def test_a_failed_attempt_returns_none_and_its_message_is_not_logged(registry, failures, caplog):
    assert attempt("cleanup", lambda: 7, failures) == 7
    assert attempt("cleanup", lambda: {}["the prompt"], failures) is None
    assert count(registry, "cleanup") == 1
    (record,) = caplog.records
    assert (record.levelname, record.fields["task"]) == ("ERROR", "cleanup")
    assert "the prompt" not in record.getMessage() + str(record.fields)


def test_a_failing_item_does_not_stop_the_others(registry, failures):
    done = []

    def act(item):
        if item % 2:
            raise ValueError(item)
        done.append(item)

    assert attempt_each("cleanup", act, range(6), failures) == [1, 3, 5]
    assert done == [0, 2, 4]
    assert count(registry, "cleanup") == 3
