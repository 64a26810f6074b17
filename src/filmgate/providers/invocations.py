"""Records of provider jobs, so that the next worker that leases a job resumes it instead of paying again."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import invocations, jobs, removed_invocations
from filmgate.database.upserts import insert_into
from filmgate.jobs import InvocationId, JobId, Lease, Routing
from filmgate.scheduling.rows import Row, from_routing, lease_lost

_MAX_ORPHANS = 50  # of one sweep


class RecordState(StrEnum):
    """OPEN: started, or about to be. FAILED: failed at the provider. CLOSED: deleted at the provider."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class InvocationRecord:
    """The record of a provider job. `invocation_id` is None until the provider has confirmed the start."""

    job_id: JobId
    provider: str
    state: RecordState
    # Since the start, when the record was read, on the clock of the database; not known of a deleted job.
    age_seconds: float = 0.0
    invocation_id: InvocationId | None = None
    is_removed: bool = False  # the job was deleted


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
_ORPHANS = (
    _RECORDS.where(invocations.c.provider == sa.bindparam("the_provider"))
    # A literal, as in ix_invocations_open, which a bound value would not use.
    .where(sa.text("invocations.state <> 'closed'"), invocations.c.invocation.is_not(None))
    .where(jobs.c.state.in_(["completed", "failed"]))
    .where(invocations.c.updated_at < sa.bindparam("before"))
    .order_by(invocations.c.updated_at)
    .limit(sa.bindparam("limit"))
)
_REMOVED = (
    sa.select(removed_invocations)
    .where(removed_invocations.c.provider == sa.bindparam("the_provider"))
    .where(removed_invocations.c.updated_at < sa.bindparam("before"))
    .order_by(removed_invocations.c.updated_at)
    .limit(sa.bindparam("limit"))
)


class SqlInvocations:
    """Records of provider jobs. Every method is one durable transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, lease: Lease, provider: str, routing: Routing) -> InvocationRecord:
        """Record the intent to start the job, and its routing. A record with an id is returned unchanged.

        Raises LeaseLost when the fence is stale.
        """
        with self._database.write() as connection:
            seq = self._require_held(connection, lease)
            now = self._database.now(connection)
            first = {
                "job_seq": seq,
                "provider": provider,
                "state": RecordState.OPEN,
                "started_at": now,
                "updated_at": now,
            }
            insert = insert_into(connection, invocations).values(first)
            again = insert.on_conflict_do_update(
                index_elements=["job_seq"],
                set_={"provider": insert.excluded.provider, "updated_at": now},
                where=invocations.c.invocation.is_(None),
            )
            connection.execute(again)
            record = _to_record(connection.execute(_FIND, {"the_seq": seq}).mappings().one(), now)
            if record.invocation_id is None:
                connection.execute(
                    sa.update(jobs).where(jobs.c.seq == seq).values(routing=from_routing(routing))
                )
            return record

    def find(self, job_id: JobId) -> InvocationRecord | None:
        """The record of a job, if there is one."""
        with self._database.read() as connection:
            row = connection.execute(_FIND_JOB, {"the_id": job_id}).mappings().one_or_none()
            return _to_record(row, self._database.now(connection)) if row is not None else None

    def set_invocation(self, job_id: JobId, invocation_id: InvocationId) -> None:
        """Record the provider's id of the job, unless it has one."""
        is_first = sa.and_(invocations.c.job_seq == _SEQ, invocations.c.invocation.is_(None))
        with self._database.write() as connection:
            values = {"invocation": invocation_id, "updated_at": self._database.now(connection)}
            connection.execute(sa.update(invocations).where(is_first).values(values), {"the_id": job_id})

    def withdraw(self, lease: Lease) -> None:
        """Delete the intent of a start that did not happen. Raises LeaseLost when the fence is stale."""
        with self._database.write() as connection:
            own = invocations.c.job_seq == self._require_held(connection, lease)
            connection.execute(sa.delete(invocations).where(own, invocations.c.invocation.is_(None)))

    def fail(self, lease: Lease) -> None:
        """Record that the job failed at the provider and is not started there again. Raises LeaseLost."""
        with self._database.write() as connection:
            own = invocations.c.job_seq == self._require_held(connection, lease)
            values = {"state": RecordState.FAILED, "updated_at": self._database.now(connection)}
            connection.execute(sa.update(invocations).where(own).values(values))

    def set_state(self, job_id: JobId, state: RecordState) -> None:
        """Set the state of a finished job's record. Does nothing when the job was removed."""
        with self._database.write() as connection:
            values = {"state": state, "updated_at": self._database.now(connection)}
            own = sa.update(invocations).where(invocations.c.job_seq == _SEQ)
            connection.execute(own.values(values), {"the_id": job_id})

    def orphans(self, provider: str, *, idle_seconds: float) -> Sequence[InvocationRecord]:
        """Records of finished or removed jobs whose provider may hold data, unchanged for `idle_seconds`."""
        with self._database.read() as connection:
            now = self._database.now(connection)
            terms = {"the_provider": provider, "before": now - idle_seconds, "limit": _MAX_ORPHANS}
            found = [_to_record(row, now) for row in connection.execute(_ORPHANS, terms).mappings()]
            terms["limit"] = max(_MAX_ORPHANS - len(found), 1)
            removed = connection.execute(_REMOVED, terms).mappings()
            return found + [_to_removed(row) for row in removed]

    def postpone(self, record: InvocationRecord) -> None:
        """Move an orphan behind the others."""
        if not record.is_removed:
            self.set_state(record.job_id, record.state)
            return
        with self._database.write() as connection:
            own = sa.update(removed_invocations).where(*_own_removed(record))
            connection.execute(own.values(updated_at=self._database.now(connection)))

    def close(self, record: InvocationRecord) -> None:
        """The provider holds nothing of this orphan any more."""
        if not record.is_removed:
            self.set_state(record.job_id, RecordState.CLOSED)
            return
        with self._database.write() as connection:
            connection.execute(sa.delete(removed_invocations).where(*_own_removed(record)))

    @staticmethod
    def _require_held(connection: sa.Connection, lease: Lease) -> int:
        held = {"the_id": lease.job.id, "the_fence": lease.fence}
        seq: int | None = connection.execute(_HELD, held).scalar_one_or_none()
        if seq is None:
            raise lease_lost(lease)
        return seq


def _to_record(row: Row, now: float) -> InvocationRecord:
    return InvocationRecord(
        job_id=JobId(row["id"]),
        provider=row["provider"],
        state=RecordState(row["state"]),
        age_seconds=now - row["started_at"],
        invocation_id=InvocationId(row["invocation"]) if row["invocation"] else None,
    )


def _to_removed(row: Row) -> InvocationRecord:
    return InvocationRecord(
        job_id=JobId(row["job_id"]),
        provider=row["provider"],
        state=RecordState.OPEN,
        invocation_id=InvocationId(row["invocation"]),
        is_removed=True,
    )


def _own_removed(record: InvocationRecord) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        removed_invocations.c.provider == record.provider,
        removed_invocations.c.invocation == record.invocation_id,
    )
