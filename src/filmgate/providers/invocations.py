"""The provider's side of a job, written down before it is relied on: who leases the job next goes on from
here instead of paying again. The token is the job's id: started twice, it is one job over there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from filmgate.database import Database
from filmgate.database.schema import invocations, jobs
from filmgate.errors import LeaseLost
from filmgate.jobs import InvocationId, JobId, Lease, Routing
from filmgate.scheduling.rows import Row, from_routing


class RecordState(StrEnum):
    """OPEN: something may lie at the provider. FAILED: it failed there, and something may too. CLOSED:
    nothing is left there.
    """

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class InvocationRecord:
    """What we know of a provider job; no `invocation_id` means that no answer to its start was written."""

    job_id: JobId
    provider: str
    token: str
    state: RecordState
    started_at: float
    invocation_id: InvocationId | None = None


_HELD = (
    sa.select(jobs.c.seq)
    .where(jobs.c.id == sa.bindparam("the_id"), jobs.c.fence == sa.bindparam("the_fence"))
    .where(sa.text("state = 'running'"))
    .with_for_update()
)
_SEQ = sa.select(jobs.c.seq).where(jobs.c.id == sa.bindparam("the_id")).scalar_subquery()
_RECORDS = sa.select(invocations, jobs.c.id).join(jobs, jobs.c.seq == invocations.c.job_seq)
_FIND = _RECORDS.where(invocations.c.job_seq == sa.bindparam("the_seq"))
_FIND_JOB = _RECORDS.where(jobs.c.id == sa.bindparam("the_id"))
_LEFTOVERS = (
    _RECORDS.where(invocations.c.provider == sa.bindparam("the_provider"))
    .where(invocations.c.invocation.is_not(None), invocations.c.state != RecordState.CLOSED)
    .where(jobs.c.state.in_(["completed", "failed"]))
    .where(invocations.c.updated_at < sa.bindparam("before"))
    .order_by(invocations.c.updated_at)
    .limit(sa.bindparam("most"))
)


class SqlInvocations:
    """Provider jobs as rows beside the jobs they belong to. Every verb is one durable transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, lease: Lease, provider: str, routing: Routing) -> InvocationRecord:
        """Write down the intent to start, and on the job what the provider will do differently. What an
        earlier attempt has started is left as it is and returned. Raises LeaseLost when the fence is stale.
        """
        with self._database.write() as connection:
            seq = self._require_held(connection, lease)
            now = self._database.now(connection)
            first = {
                "job_seq": seq,
                "provider": provider,
                "token": lease.job.id,
                "state": RecordState.OPEN,
                "started_at": now,
                "updated_at": now,
            }
            insert = (sqlite.insert if self._database.is_sqlite else postgresql.insert)(invocations)
            insert = insert.values(first)
            again = insert.on_conflict_do_update(
                index_elements=["job_seq"],
                set_={"provider": insert.excluded.provider, "updated_at": now},
                where=invocations.c.invocation.is_(None),
            )
            connection.execute(again)
            record = _to_record(connection.execute(_FIND, {"the_seq": seq}).mappings().one())
            if record.invocation_id is None:
                told = sa.update(jobs).where(jobs.c.seq == seq).values(routing=from_routing(routing))
                connection.execute(told)
            return record

    def find(self, job_id: JobId) -> InvocationRecord | None:
        """What was written about the job, if anything."""
        with self._database.read() as connection:
            row = connection.execute(_FIND_JOB, {"the_id": job_id}).mappings().one_or_none()
        return _to_record(row) if row is not None else None

    def note(self, job_id: JobId, invocation_id: InvocationId) -> None:
        """The provider's name for the job, before anyone waits for it. The first one written stays."""
        is_first = sa.and_(invocations.c.job_seq == _SEQ, invocations.c.invocation.is_(None))
        with self._database.write() as connection:
            values = {"invocation": invocation_id, "updated_at": self._database.now(connection)}
            connection.execute(sa.update(invocations).where(is_first).values(values), {"the_id": job_id})

    def withdraw(self, lease: Lease) -> None:
        """Forget an intent that came to nothing: the job may go home, and be started another time.

        Raises LeaseLost: somebody else may be starting it this moment.
        """
        with self._database.write() as connection:
            own = invocations.c.job_seq == self._require_held(connection, lease)
            connection.execute(sa.delete(invocations).where(own, invocations.c.invocation.is_(None)))

    def fail(self, lease: Lease) -> None:
        """It failed over there: the job may go home, and is not started again. Raises LeaseLost."""
        with self._database.write() as connection:
            own = invocations.c.job_seq == self._require_held(connection, lease)
            values = {"state": RecordState.FAILED, "updated_at": self._database.now(connection)}
            connection.execute(sa.update(invocations).where(own).values(values))

    def settle(self, job_id: JobId, state: RecordState) -> None:
        """What is left over there of a job that has ended. A row that went with its job is no error."""
        with self._database.write() as connection:
            values = {"state": state, "updated_at": self._database.now(connection)}
            own = sa.update(invocations).where(invocations.c.job_seq == _SEQ)
            connection.execute(own.values(values), {"the_id": job_id})

    def leftovers(self, provider: str, *, idle_seconds: float, limit: int = 50) -> Sequence[InvocationRecord]:
        """Jobs that have ended here while something may still lie at the provider, untouched for a while."""
        with self._database.read() as connection:
            before = self._database.now(connection) - idle_seconds
            terms = {"the_provider": provider, "before": before, "most": limit}
            return [_to_record(row) for row in connection.execute(_LEFTOVERS, terms).mappings()]

    @staticmethod
    def _require_held(connection: sa.Connection, lease: Lease) -> int:
        held = {"the_id": lease.job.id, "the_fence": lease.fence}
        seq: int | None = connection.execute(_HELD, held).scalar_one_or_none()
        if seq is None:
            raise LeaseLost(f"the lease of {lease.job.id} with fence {lease.fence} is no longer ours")
        return seq


def _to_record(row: Row) -> InvocationRecord:
    return InvocationRecord(
        job_id=JobId(row["id"]),
        provider=row["provider"],
        token=row["token"],
        state=RecordState(row["state"]),
        started_at=row["started_at"],
        invocation_id=InvocationId(row["invocation"]) if row["invocation"] else None,
    )
