"""The forecast: when each job starts, from values alone."""

from dataclasses import replace
from math import inf, isinf

from hypothesis import given, settings
from hypothesis import strategies as st

from filmgate.jobs import JobId, Route, TenantId, WorkerId
from filmgate.scheduling.forecast import forecast
from filmgate.scheduling.snapshot import Account, QueuedJob, RunningJob, Snapshot, Tail
from filmgate.scheduling.workers import WorkerStatus

A, B = TenantId("a"), TenantId("b")


def worker(name="w1", models=("wan",), route=Route.GPU, capacity=1):
    return WorkerStatus(WorkerId(name), route, models, "gpu", capacity)


def queued(number, tenant=A, seconds=10.0, model="wan", deadline=None, **fields):
    return QueuedJob(
        JobId(f"job-{number}"),
        tenant,
        fields.pop("route", Route.GPU),
        model,
        busy_seconds=seconds,
        share_seconds=seconds,
        deadline_at=90.0 + number if deadline is None else deadline,
        seq=number,
        **fields,
    )


def starts(snapshot, **options):
    return {job: slot.starts_in for job, slot in forecast(snapshot, **options).slots.items()}


def test_jobs_of_one_tenant_start_in_the_order_of_their_deadlines():
    jobs = (queued(1, deadline=50.0), queued(2, deadline=20.0), queued(3, deadline=30.0))
    assert starts(Snapshot(0.0, jobs, workers=(worker(),))) == {"job-2": 0.0, "job-3": 10.0, "job-1": 20.0}


def test_two_workers_halve_the_wait():
    jobs = tuple(queued(number) for number in range(4))
    snapshot = Snapshot(0.0, jobs, workers=(worker("w1"), worker("w2")))
    assert sorted(starts(snapshot).values()) == [0.0, 0.0, 10.0, 10.0]


def test_a_worker_that_heat_slows_down_takes_longer():
    slow = replace(worker(), speed=0.5)
    jobs = (queued(1), queued(2))
    assert starts(Snapshot(0.0, jobs, workers=(slow,))) == {"job-1": 0.0, "job-2": 20.0}


def test_a_running_job_occupies_its_worker():
    running = RunningJob(JobId("r"), B, Route.GPU, WorkerId("w1"), free_in=7.0, ends_in=8.0)
    snapshot = Snapshot(0.0, (queued(1),), running=(running,), workers=(worker(),))
    assert starts(snapshot) == {"job-1": 7.0}


def test_a_worker_is_free_when_the_last_of_its_running_jobs_is():
    running = tuple(
        RunningJob(JobId(f"r{n}"), B, Route.GPU, WorkerId("w1"), free_in=free_in, ends_in=free_in + 1)
        for n, free_in in enumerate((0.0, 17.0, 7.0))
    )
    snapshot = Snapshot(0.0, (queued(1),), running=running, workers=(worker(),))
    assert starts(snapshot) == {"job-1": 17.0}


def test_the_tenant_with_the_lowest_virtual_time_is_first_and_weight_counts():
    jobs = (*(queued(n, A) for n in range(3)), *(queued(n, B) for n in range(3, 9)))
    accounts = {A: Account(weight=1.0), B: Account(weight=2.0)}
    order = sorted(
        (at, job) for job, at in starts(Snapshot(0.0, jobs, accounts=accounts, workers=(worker(),))).items()
    )
    tenants = ["a" if job in {"job-0", "job-1", "job-2"} else "b" for _, job in order]
    assert tenants[:6].count("b") == 2 * tenants[:6].count("a")


def test_a_tenant_at_its_running_limit_waits_for_its_own_jobs():
    jobs = (queued(1, A), queued(2, A), queued(3, B))
    accounts = {A: Account(max_running=1), B: Account(virtual_time=100.0)}
    snapshot = Snapshot(0.0, jobs, accounts=accounts, workers=(worker("w1"), worker("w2")))
    assert starts(snapshot) == {"job-1": 0.0, "job-3": 0.0, "job-2": 10.0}


def test_a_retry_that_is_due_bypasses_fair_share():
    jobs = (queued(1, A), queued(2, B, ready_in=5.0), queued(3, A))
    assert starts(Snapshot(0.0, jobs, workers=(worker(),))) == {"job-1": 0.0, "job-2": 10.0, "job-3": 20.0}


def test_a_worker_starts_only_models_it_serves():
    jobs = (queued(1, model="wan"), queued(2, model="ltx"))
    snapshot = Snapshot(0.0, jobs, workers=(worker("w1", ("ltx",)),))
    slots = forecast(snapshot).slots
    assert slots["job-2"].starts_in == 0.0
    assert isinf(slots["job-1"].starts_in)
    assert slots["job-1"].position == 1


def test_without_a_worker_positions_are_known_and_times_are_not():
    jobs = tuple(queued(number) for number in range(3))
    slots = forecast(Snapshot(0.0, jobs)).slots
    assert [slots[job.job_id].position for job in jobs] == [1, 2, 3]
    assert all(isinf(slot.ends_in) for slot in slots.values())
    assert starts(Snapshot(0.0, jobs), expects_workers=True)["job-2"] == 20.0


def test_an_arrival_at_an_empty_queue_starts_at_once_while_workers_are_expected():
    arrival = (A, Route.GPU, "wan", 10.0, 1000.0)
    assert isinf(forecast(Snapshot(0.0)).arrive(*arrival).starts_in)
    assert forecast(Snapshot(0.0), expects_workers=True).arrive(*arrival).starts_in == 0.0


def test_an_expected_worker_orders_jobs_and_is_not_counted():
    jobs = (queued(1, model="ltx"), queued(2, model="wan"))
    future = forecast(Snapshot(0.0, jobs, workers=(worker("w1", ("wan",)),)), expects_workers=True)
    assert future.slots["job-1"].starts_in == 0.0
    assert [future.count_workers(Route.GPU, model, A) for model in ("ltx", "wan")] == [0, 1]


def test_jobs_beyond_the_listed_ones_delay_what_comes_after():
    tail = Tail(A, Route.GPU, "wan", jobs=4, gpu_seconds=40.0)
    future = forecast(Snapshot(0.0, (queued(1, A),), (tail,), workers=(worker(),), accounts={A: Account()}))
    assert future.arrive(A, Route.GPU, "wan", 10.0, 1000.0).starts_in == 50.0
    assert (future.backlog_seconds(A), future.count_jobs(Route.GPU)) == (50.0, 5)
    assert future.count_jobs(Route.MANAGED) == 0


def test_a_job_that_gives_up_its_turn_delays_no_other():
    jobs = tuple(queued(number) for number in range(3))
    snapshot = Snapshot(0.0, jobs, workers=(worker(),))
    seen = {}

    def takes_turn(job, starts_in):
        seen[job.job_id] = starts_in
        return job.job_id != "job-1"

    forecast(snapshot, takes_turn=takes_turn)
    assert seen == {"job-0": 0.0, "job-1": 10.0, "job-2": 10.0}


def test_a_newcomer_does_not_wait_for_a_crowd():
    crowd = tuple(queued(number, A) for number in range(50))
    accounts = {A: Account(virtual_time=30.0)}
    future = forecast(Snapshot(0.0, crowd, accounts=accounts, workers=(worker(),)))
    slot = future.arrive(B, Route.GPU, "wan", 10.0, 500.0)
    assert slot.starts_in <= 10.0
    assert slot.position <= 2


def test_managed_workers_run_many_jobs_at_once():
    jobs = tuple(queued(number, route=Route.MANAGED) for number in range(5))
    snapshot = Snapshot(0.0, jobs, workers=(worker("m", route=Route.MANAGED, capacity=4),))
    assert sorted(starts(snapshot).values()) == [0.0] * 4 + [10.0]


TENANTS = (TenantId("a"), TenantId("b"), TenantId("c"))
jobs_lists = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.sampled_from([5.0, 10.0, 30.0]),
        st.integers(0, 50),
        st.sampled_from(["wan", "wan", "ltx"]),
        st.sampled_from([None, None, None, 0.0, 12.0]),  # seconds until a retry is due
    ),
    max_size=12,
)
account_maps = st.fixed_dictionaries(
    {
        tenant: st.builds(
            Account,
            weight=st.sampled_from([0.5, 1.0, 2.0]),
            virtual_time=st.sampled_from([0.0, 3.0, 40.0]),
            max_running=st.sampled_from([None, None, 1, 2]),
        )
        for tenant in TENANTS
    }
)


@settings(max_examples=300, deadline=None)
@given(
    jobs_lists,
    account_maps,
    st.lists(st.sampled_from([("wan",), ("ltx",), ("wan", "ltx")]), max_size=3),
    st.sampled_from(TENANTS),
    st.integers(90, 160),
)
def test_an_arrival_has_the_slot_that_a_forecast_with_it_would_give_it(
    entries, accounts, models, tenant, deadline
):
    jobs = tuple(
        queued(n, who, work, model, deadline=100.0 + due, ready_in=ready_in)
        for n, (who, work, due, model, ready_in) in enumerate(entries)
    )
    fleet = tuple(worker(f"w{n}", served) for n, served in enumerate(models))
    snapshot = Snapshot(0.0, jobs, accounts=accounts, workers=fleet)
    joined = replace(accounts[tenant], virtual_time=snapshot.joined_virtual_time(tenant))
    new = queued(99, tenant, 7.0, deadline=float(deadline))
    after = forecast(replace(snapshot, queued=(*jobs, new), accounts={**accounts, tenant: joined}))
    slot = forecast(snapshot).arrive(tenant, Route.GPU, "wan", 7.0, float(deadline))
    assert slot == after.slots[new.job_id]


@given(jobs_lists, account_maps, st.integers(0, 3))
def test_every_job_gets_a_slot_and_no_worker_runs_two_at_once(entries, accounts, workers):
    jobs = tuple(
        queued(n, who, work, deadline=100.0 + due) for n, (who, work, due, _, _) in enumerate(entries)
    )
    snapshot = Snapshot(0.0, jobs, accounts=accounts, workers=tuple(worker(f"w{n}") for n in range(workers)))
    slots = forecast(snapshot, expects_workers=True).slots
    assert slots.keys() == {job.job_id for job in jobs}
    assert sorted(slot.position for slot in slots.values()) == list(range(1, len(jobs) + 1))
    moments = sorted({slot.starts_in for slot in slots.values()})
    for moment in moments:
        busy = sum(slot.starts_in <= moment < slot.ends_in for slot in slots.values())
        assert busy <= max(workers, 1)
    assert all(slot.ends_in < inf for slot in slots.values())
