"""The history of the service on both databases, written with the end of each job."""

import pytest

from filmgate.jobs import Failure, Reason, Route, TenantId, WorkerId
from filmgate.scheduling.base import AttemptFailure
from filmgate.scheduling.history import (
    COARSE_SECONDS,
    FINE_SECONDS,
    KEEP_SECONDS,
    DeviceSeconds,
    History,
    Window,
)
from filmgate.scheduling.records import JobFilter
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from tests.contract.conftest import NOON
from tests.tickets import RESULT, make_offer, make_ticket

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
DAY = 86400


@pytest.fixture
def history(bench):
    return History(bench.database)


def run(queue, clocks, seconds, tenant="acme", **ticket):
    job = queue.enqueue(make_ticket(tenant, **ticket))
    lease = queue.lease(make_offer())
    clocks.pass_time(seconds)
    queue.heartbeat(lease)
    queue.complete(lease, RESULT)
    return job


def read(history, clocks, seconds, *group_by, period=0, tenant=None):
    window = Window.around(clocks.wall - seconds, clocks.wall + 1, period, clocks.wall)
    return history.read(window, group_by, tenant)


def test_every_end_of_a_job_is_counted_once_and_outlives_it(queue, history, clocks):
    done = run(queue, clocks, 20)
    run(queue, clocks, 25, slo_seconds=10.0)
    queue.enqueue(make_ticket())
    failure = Failure(Reason.INTERNAL, "defect")
    queue.fail_attempt(queue.lease(make_offer()), AttemptFailure(failure, is_retryable=False))
    queue.cancel(ACME, queue.enqueue(make_ticket()).id)
    queue.remove(ACME, done.id)
    (found,) = read(history, clocks, 3600)
    assert (found.completed, found.failed, found.cancelled) == (2, 1, 1)
    assert (found.judged, found.late) == (3, 2)
    assert found.latencies.mean == pytest.approx(22.5)
    assert found.gpu_seconds == pytest.approx(2 * RESULT.measured.gpu_seconds)
    by_reason = {each.group["reason"]: each.failed for each in read(history, clocks, 3600, "reason")}
    assert by_reason == {"": 0, "internal_error": 1, "cancelled": 0}


def test_periods_groups_and_tenants_add_up(queue, history, clocks):
    run(queue, clocks, 10)
    run(queue, clocks, 10, "globex")
    clocks.pass_time(DAY)
    run(queue, clocks, 10)
    days = read(history, clocks, 2 * DAY, "tenant", "model", period=DAY)
    assert [(each.period, each.group["tenant"], each.completed) for each in days] == [
        (int(NOON) - 43200, "acme", 1),
        (int(NOON) - 43200, "globex", 1),
        (int(NOON) + 43200, "acme", 1),
    ]
    for period in (FINE_SECONDS, COARSE_SECONDS, 0):
        assert sum(each.completed for each in read(history, clocks, DAY + 600, period=period)) == 3
    assert [each.completed for each in read(history, clocks, 2 * DAY, tenant=GLOBEX)] == [1]


def test_old_rows_are_deleted_fine_ones_first(queue, history, clocks):
    run(queue, clocks, 10)
    clocks.pass_time(KEEP_SECONDS[FINE_SECONDS] + 600)
    history.delete_old()
    hours = Window.around(NOON - 60, clocks.wall, COARSE_SECONDS, clocks.wall)
    fine = Window(hours.start, hours.end, 0, FINE_SECONDS)
    assert history.read(fine) == []
    assert [each.completed for each in history.read(hours)] == [1]
    clocks.pass_time(KEEP_SECONDS[COARSE_SECONDS])
    history.delete_old()
    assert history.read(hours) == []


def beat(registry, seconds, number=1):
    worker = WorkerStatus(WorkerId(f"node-{number}"), Route.GPU, ("wan",), device_seconds=seconds)
    registry.heartbeat(worker)


def test_heartbeats_add_what_has_passed_to_the_interval_in_which_it_passed(bench, clocks):
    """GPU busy and idle between clips of a range."""
    registry, history = WorkerRegistry(bench.database), History(bench.database)
    begin = int(clocks.wall // COARSE_SECONDS) * COARSE_SECONDS
    clocks.pass_time(begin + COARSE_SECONDS + 60 - clocks.wall)  # a minute after a full hour
    hour = begin + COARSE_SECONDS
    beat(registry, DeviceSeconds(0.0, 0.0))
    clocks.pass_time(240)
    beat(registry, DeviceSeconds(180.0, 60.0, 2.0, 4))
    beat(registry, DeviceSeconds(180.0, 60.0, 2.0, 4))  # nothing has passed since
    beat(registry, DeviceSeconds(0.0, 30.0), number=2)
    clocks.pass_time(600)  # the database was away for two intervals
    beat(registry, DeviceSeconds(180.0, 660.0, 2.0, 4))
    read = Window(hour, hour + COARSE_SECONDS, FINE_SECONDS, FINE_SECONDS)
    assert history.read_devices(read) == {
        hour: DeviceSeconds(180.0, 90.0, 2.0, 4),
        hour + 300: DeviceSeconds(0.0, 300.0),
        hour + 600: DeviceSeconds(0.0, 300.0),
    }
    whole = history.read_devices(Window(hour, hour + COARSE_SECONDS, 0, COARSE_SECONDS))
    assert whole == {hour: DeviceSeconds(180.0, 690.0, 2.0, 4)}


def test_a_worker_that_starts_again_counts_from_zero(bench, clocks):
    history, worker = History(bench.database), DeviceSeconds(100.0, 20.0)
    beat(WorkerRegistry(bench.database), worker)
    clocks.pass_time(400)
    beat(WorkerRegistry(bench.database), DeviceSeconds(10.0, 20.0))  # a new process with the same name
    window = Window.around(clocks.wall - 2000, clocks.wall + 1, 0, clocks.wall)
    (found,) = history.read_devices(window).values()
    assert (found.busy, found.idle) == pytest.approx((110.0, 40.0))
    clocks.pass_time(KEEP_SECONDS[COARSE_SECONDS] + 7200)
    history.delete_old()
    assert history.read_devices(window) == {}


def test_jobs_are_found_by_the_digest_of_their_prompt_within_one_tenant(queue, reader):
    first, second = (queue.enqueue(make_ticket(prompt="a red ball")) for _ in range(2))
    queue.enqueue(make_ticket(prompt="a blue ball"))
    queue.enqueue(make_ticket("globex", prompt="a red ball"))
    own = queue.digests.digest_prompt(ACME, "a red ball")
    other = queue.digests.digest_prompt(GLOBEX, "a red ball")
    found = reader.page(ACME, where=JobFilter(prompt_hmac=own)).jobs
    assert [job.id for job in found] == [second.id, first.id]
    assert own != other
    assert reader.page(ACME, where=JobFilter(prompt_hmac=other)).jobs == ()
