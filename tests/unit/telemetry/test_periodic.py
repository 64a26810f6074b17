"""Background tasks: a failure is logged and counted, and neither the task nor the other items stop."""

import pytest

from filmgate.errors import QueueUnavailable
from filmgate.telemetry.management import new_registry
from filmgate.telemetry.periodic import Periodic, attempt, attempt_each
from tests.waiting import wait_until


@pytest.mark.parametrize(
    "error",
    [QueueUnavailable("down"), ValueError("x"), KeyError("x"), AssertionError(), RecursionError(), OSError()],
    ids=lambda error: type(error).__name__,
)
def test_a_task_runs_again_after_any_exception(error, task_failures):
    runs = []

    def fail_twice():
        runs.append(1)
        if len(runs) <= 2:
            raise error

    with Periodic("cleanup", fail_twice, 0.001):
        wait_until(lambda: len(runs) >= 5, interval=0.001)
    assert task_failures("cleanup") == 2


def test_a_stopped_task_does_not_run_again():
    runs = []
    with Periodic("cleanup", lambda: runs.append(1), 0.001):
        wait_until(lambda: runs, interval=0.001)
    seen = len(runs)
    with Periodic("other", lambda: runs.append(2), 0.001):
        wait_until(lambda: runs.count(2) > 3, interval=0.001)
    assert runs.count(1) == seen


def test_a_failed_attempt_returns_none_and_its_message_is_not_logged(task_failures, caplog):
    assert attempt("cleanup", lambda: 7) == 7
    assert attempt("cleanup", lambda: {}["the prompt"]) is None
    assert task_failures("cleanup") == 1
    (record,) = caplog.records
    assert (record.levelname, record.fields["task"]) == ("ERROR", "cleanup")
    assert "the prompt" not in record.getMessage() + str(record.fields)


def test_a_failing_item_does_not_stop_the_others(task_failures):
    done = []

    def act(item):
        if item % 2:
            raise ValueError(item)
        done.append(item)

    assert attempt_each("cleanup", act, range(6)) == [1, 3, 5]
    assert done == [0, 2, 4]
    assert task_failures("cleanup") == 3


def test_the_metrics_of_every_process_include_its_failed_tasks():
    """Nothing is passed on to a task for this, so no task can be left out."""
    registries = [new_registry(), new_registry()]
    attempt("cleanup of metrics", lambda: 1 / 0)
    named = {"task": "cleanup of metrics"}
    assert [each.get_sample_value("filmgate_task_failures_total", named) for each in registries] == [1, 1]
