"""Any history of leases, failures, expiries and cancellations leaves the queue as a small model expects."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.errors import JobActive, JobNotFound, LeaseLost
from filmgate.jobs import Failure, Idempotency, JobId, JobState, Lease, Reason, Share, TenantId
from filmgate.scheduling import open_queue, open_reader
from filmgate.scheduling.base import AttemptFailure
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.files import FileKeyring
from tests.conftest import FUZZ
from tests.contract.conftest import Clocks
from tests.databases import empty_tables
from tests.tickets import PREDICTED, RESULT, make_offer, make_ticket

SHARES = {TenantId("free"): Share(), TenantId("limited"): Share(max_running=1)}
LEASE_SECONDS, BACKOFF_SECONDS, MAX_ATTEMPTS = 30.0, 2.0, 3
QUEUED, RUNNING, COMPLETED, FAILED = JobState
ENDS = {
    "retried": AttemptFailure(Failure(Reason.OUT_OF_MEMORY, "out of GPU memory")),
    "permanent": AttemptFailure(Failure(Reason.DECODE_FAILED, "no frames"), is_retryable=False),
    "handed back": AttemptFailure(Failure(Reason.WORKER_LOST, "drained"), uses_attempt=False),
    "paused": AttemptFailure(Failure(Reason.STORE_FAILED, "away"), uses_attempt=False, retry_seconds=4.0),
}


@dataclass
class Expected:
    """What the model knows of a job. `wake_at` is the end of its lease, its backoff or its pause."""

    tenant_id: TenantId
    state: JobState = QUEUED
    attempt: int = 0
    fence: int = 0
    wake_at: float | None = None
    is_cancelling: bool = False
    is_paused: bool = False  # it waits its turn after `wake_at`
    used: float = PREDICTED.gpu_seconds  # reserved while it is open

    @property
    def is_over(self) -> bool:
        return self.state.is_final

    def end(self, state: JobState, used: float) -> None:
        self.state, self.used, self.wake_at = state, used, None


class QueueMachine(RuleBasedStateMachine):
    """Compares the queue with the model after every step."""

    url: str | None = None  # None: a new SQLite file
    jobs = Bundle("jobs")
    leases = Bundle("leases")

    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory()
        if self.url is not None:
            empty_tables(self.url)
        self.clocks, self.expected, self.removed, self.keys = Clocks(), {}, [], {}
        self.spent = dict.fromkeys(SHARES, 0.0)
        folder = Path(self.folder.name)
        clocks = {"clock": lambda: self.clocks.wall, "steady_clock": lambda: self.clocks.steady}
        self.database = Database(self.url or f"sqlite:///{folder / 'filmgate.db'}", **clocks)
        migrate(self.database)
        keys = DataKeys(FileKeyring(folder / "keys"))
        terms = QueueSettings(
            lease_seconds=LEASE_SECONDS, backoff_seconds=BACKOFF_SECONDS, max_attempts=MAX_ATTEMPTS
        )
        self.queue, self.reader = open_queue(self.database, keys, terms), open_reader(self.database, keys)

    def teardown(self):
        if hasattr(self, "database"):
            self.database.close()
            self.folder.cleanup()

    @rule(target=jobs, tenant_id=st.sampled_from(list(SHARES)), key=st.none() | st.sampled_from("ab"))
    def enqueue(self, tenant_id, key):
        digest = key or f"body {len(self.expected) + len(self.removed)}"
        ticket = make_ticket(tenant_id, share=SHARES[tenant_id], idempotency=Idempotency(digest, key=key))
        job = self.queue.enqueue(ticket)
        if key is not None and self.keys.get((tenant_id, key)) in self.expected:
            assert job.id == self.keys[tenant_id, key]
            return job.id
        assert job.id not in self.expected
        self.keys[tenant_id, key] = job.id
        self.expected[job.id] = Expected(tenant_id)
        return job.id

    @rule(target=leases)
    def lease(self):
        due = self._expect_due()
        lease = self.queue.lease(make_offer())
        if lease is None:
            assert due is None
            assert self._ready() == []
            return None
        assert lease.job.id == due if due is not None else lease.job.id in self._ready()
        self._grant(lease)
        return lease

    def _expect_due(self) -> JobId | None:
        """The job that is leased before all waiting ones. Fails those that may not be leased again."""
        due = [
            (job.wake_at, job_id)
            for job_id, job in self.expected.items()
            if job.wake_at is not None and job.wake_at <= self.clocks.steady and not job.is_paused
        ]
        for _, job_id in sorted(due):
            job = self.expected[job_id]
            if job.state is QUEUED and not self._has_place(job.tenant_id):
                continue
            if not (job.is_cancelling or (job.state is RUNNING and job.attempt >= MAX_ATTEMPTS)):
                return job_id
            job.end(FAILED, 0.0)
        return None

    def _has_place(self, tenant_id) -> bool:
        limit = SHARES[tenant_id].max_running
        return limit is None or self._count(tenant_id, RUNNING) < limit

    def _count(self, tenant_id, state) -> int:
        return sum((job.tenant_id, job.state) == (tenant_id, state) for job in self.expected.values())

    def _ready(self) -> list[JobId]:
        """The oldest waiting job of each tenant with a free place."""
        waiting = [
            (i, j)
            for i, j in self.expected.items()
            if j.state is QUEUED and (j.wake_at is None or (j.is_paused and j.wake_at <= self.clocks.steady))
        ]
        able = [tenant_id for tenant_id in SHARES if self._has_place(tenant_id)]
        return [
            next(i for i, j in waiting if j.tenant_id == t)
            for t in able
            if t in {j.tenant_id for _, j in waiting}
        ]

    def _grant(self, lease: Lease) -> None:
        job = self.expected[lease.job.id]
        job.state, job.wake_at, job.is_paused = RUNNING, self.clocks.steady + LEASE_SECONDS, False
        job.attempt, job.fence = job.attempt + 1, job.fence + 1
        assert (lease.fence, lease.job.attempt) == (job.fence, job.attempt)

    def _is_held(self, lease: Lease) -> bool:
        job = self.expected.get(lease.job.id)
        return job is not None and job.state is RUNNING and job.fence == lease.fence

    @rule(lease=leases.filter(bool))
    def heartbeat(self, lease):
        if not self._is_held(lease):
            with pytest.raises(LeaseLost):
                self.queue.heartbeat(lease)
            return
        job = self.expected[lease.job.id]
        assert self.queue.heartbeat(lease).is_cancelling == job.is_cancelling
        job.wake_at = self.clocks.steady + LEASE_SECONDS

    @rule(lease=leases.filter(bool))
    def complete(self, lease):
        job = self.expected.get(lease.job.id)
        is_repeated = job is not None and job.state is COMPLETED and job.fence == lease.fence
        if not is_repeated and not self._is_held(lease):
            with pytest.raises(LeaseLost):
                self.queue.complete(lease, RESULT)
            return
        done = self.queue.complete(lease, RESULT)
        if not is_repeated:
            job.end(FAILED if job.is_cancelling else COMPLETED, RESULT.measured.gpu_seconds)
        assert done.state is job.state

    @rule(lease=leases.filter(bool), how=st.sampled_from(list(ENDS)))
    def fail_attempt(self, lease, how):
        if not self._is_held(lease):
            with pytest.raises(LeaseLost):
                self.queue.fail_attempt(lease, ENDS[how])
            return
        job = self.expected[lease.job.id]
        self.queue.fail_attempt(lease, ENDS[how])
        is_last = how == "retried" and job.attempt >= MAX_ATTEMPTS
        if job.is_cancelling or how == "permanent" or is_last:
            job.end(FAILED, 0.0)
            return
        delay = BACKOFF_SECONDS * 2.0 ** (job.attempt - 1) if how == "retried" else ENDS[how].retry_seconds
        job.state, job.wake_at = QUEUED, self.clocks.steady + delay
        job.attempt -= how != "retried"
        job.is_paused = delay > 0 and job.fence > job.attempt

    @rule(job_id=jobs)
    def cancel(self, job_id):
        if job_id in self.removed:
            with pytest.raises(JobNotFound):
                self.queue.cancel(TenantId("free"), job_id)
            return
        job = self.expected[job_id]
        self.queue.cancel(job.tenant_id, job_id)
        if job.state is QUEUED or (job.state is RUNNING and job.wake_at <= self.clocks.steady):
            job.end(FAILED, 0.0)
        elif job.state is RUNNING:
            job.is_cancelling = True

    @rule(job_id=jobs)
    def remove(self, job_id):
        if (job := self.expected.get(job_id)) is None:
            self.queue.remove(TenantId("free"), job_id)
        elif not job.is_over:
            with pytest.raises(JobActive):
                self.queue.remove(job.tenant_id, job_id)
        else:
            self.queue.remove(job.tenant_id, job_id)
            self.removed.append(job_id)
            self.spent[job.tenant_id] += self.expected.pop(job_id).used

    @rule(seconds=st.sampled_from([1.0, 5.0, 31.0]))
    def pass_time(self, seconds):
        self.clocks.pass_time(seconds)

    @invariant()
    def every_job_is_as_expected(self):
        # No two times are equal, so the order of due jobs is known.
        self.clocks.pass_time(0.001)
        for job_id, job in self.expected.items():
            found = self.reader.find(job.tenant_id, job_id)
            assert (found.state, found.attempt, found.fence) == (job.state, job.attempt, job.fence)

    @invariant()
    def the_books_are_exact(self):
        counts = {(c.tenant_id, c.state): c.jobs for c in self.reader.backlog().counts if c.jobs}
        pairs = [(tenant_id, state) for tenant_id in SHARES for state in (QUEUED, RUNNING)]
        assert counts == {pair: self._count(*pair) for pair in pairs if self._count(*pair)}
        for tenant_id, share in SHARES.items():
            assert share.max_running is None or self._count(tenant_id, RUNNING) <= share.max_running
            used = sum(job.used for job in self.expected.values() if job.tenant_id == tenant_id)
            assert self.reader.gpu_seconds_today(tenant_id) == pytest.approx(used + self.spent[tenant_id])


@pytest.mark.parametrize(("engine", "examples"), [("sqlite", 8), ("postgresql", 3)])
def test_any_history_of_the_queue_is_as_expected(request, engine, examples):
    class Machine(QueueMachine):
        url = request.getfixturevalue("postgres_url") if engine == "postgresql" else None

    terms = settings(max_examples=examples * FUZZ, stateful_step_count=30, derandomize=FUZZ == 1)
    assert run_state_machine_as_test(Machine, settings=terms) is None
