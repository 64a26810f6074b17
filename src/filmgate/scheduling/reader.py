"""The JobReader on one database."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import sqlalchemy as sa

from filmgate.audit.records import Action
from filmgate.database import Database
from filmgate.database.commits import CommitSignal
from filmgate.database.records import read_record
from filmgate.database.schema import accounts, audit_records, events, job_counts, jobs
from filmgate.errors import JobNotFound, KeyRefused
from filmgate.jobs import Job, JobId, JobState, Route, StageSeconds, TenantId
from filmgate.scheduling.durations import read_histograms
from filmgate.scheduling.fair_share import ROUTED, used_today
from filmgate.scheduling.records import (
    ALL_JOBS,
    Backlog,
    EndedJobs,
    JobCount,
    JobEvent,
    JobFilter,
    Measurement,
    Page,
    RoutedJobs,
    Statistics,
)
from filmgate.scheduling.rows import (
    UNSEALED,
    Row,
    open_prompt,
    to_job,
    to_measured,
    to_spec,
    to_stage,
)
from filmgate.scheduling.snapshot import Snapshot, read_snapshot
from filmgate.scheduling.workers import read_alive
from filmgate.slo.counts import read_totals
from filmgate.store.keys.data_keys import DataKeys, Sealer

_IDS_PER_QUERY = 500
_MAX_MEASUREMENTS = 100
_OLDEST = sa.select(sa.func.min(jobs.c.created_at)).where(sa.text("jobs.state = 'queued'"))
_OPEN_COUNTS = sa.select(job_counts).where(
    job_counts.c.jobs > 0, job_counts.c.state.in_([JobState.QUEUED.value, JobState.RUNNING.value])
)
_ENDED_COUNTS = sa.select(job_counts).where(job_counts.c.state.in_([JobState.COMPLETED, JobState.FAILED]))
_CREATIONS = sa.select(audit_records.c.number).where(audit_records.c.action == Action.CREATED.value)
# The record that created a job. Retention deletes old ones: a job without one is older than the others.
_CREATION = sa.func.coalesce(_CREATIONS.where(audit_records.c.job_id == jobs.c.id).scalar_subquery(), 0)
_ROUTED_COUNTS = sa.select(job_counts).where(job_counts.c.state == ROUTED)


class SqlJobReader:
    """Reads jobs without locks."""

    def __init__(self, database: Database, keys: DataKeys) -> None:
        self._database = database
        self._sealer = Sealer(keys)
        self._commits = CommitSignal(database)

    def find(self, tenant_id: TenantId, job_id: JobId, *, has_prompt: bool = True) -> Job:
        with self._database.read() as connection:
            row = _find_row(connection, tenant_id, job_id)
        return self._read(row) if has_prompt else to_job(row)

    def _read(self, row: Row) -> Job:
        """The job of a row, after the transaction. Its prompt is "" when the tenant's key is destroyed."""
        try:
            return to_job(row, open_prompt(self._sealer, row))
        except KeyRefused:
            return to_job(row)

    def page(
        self,
        tenant_id: TenantId,
        *,
        after: JobId | None = None,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
        where: JobFilter = ALL_JOBS,
    ) -> Page:
        statement = sa.select(jobs).where(jobs.c.tenant_id == tenant_id, *_conditions(where)).limit(limit + 1)
        statement = statement.order_by(jobs.c.seq.desc() if order == "desc" else jobs.c.seq.asc())
        with self._database.read() as connection:
            if after is not None:
                place, own = _find_place(connection, tenant_id, after)
                statement = statement.where(place < own if order == "desc" else place > own)
            rows = connection.execute(statement).mappings().all()
        return Page(
            jobs=tuple(self._read(row) for row in rows[:limit]),
            has_more=len(rows) > limit,
        )

    def changes(self, seen: Mapping[JobId, int]) -> Sequence[Job]:
        changed: list[Job] = []
        with self._database.read() as connection:
            for ids in _in_groups(list(seen)):
                revisions = sa.select(jobs.c.id, jobs.c.revision).where(jobs.c.id.in_(ids))
                newer = [r.id for r in connection.execute(revisions) if r.revision > seen[r.id]]
                if newer:
                    rows = connection.execute(sa.select(*UNSEALED).where(jobs.c.id.in_(newer))).mappings()
                    changed += [to_job(row) for row in rows]
        return changed

    def wait(self, seconds: float, is_stopping: Callable[[], bool]) -> None:
        self._commits.wait(seconds, is_stopping)

    def events(self, tenant_id: TenantId, job_id: JobId, *, after: int = 0) -> Sequence[JobEvent]:
        with self._database.read() as connection:
            seq = _find_row(connection, tenant_id, job_id)["seq"]
            statement = (
                sa.select(events)
                .where(events.c.job_seq == seq, events.c.revision > after)
                .order_by(events.c.revision)
            )
            rows = connection.execute(statement).mappings().all()
        return [read_record(JobEvent, {**row, "stage": to_stage(row["stage"])}) for row in rows]

    def snapshot(self, *, has_specs: bool = False, limit: int = 2000) -> Snapshot:
        with self._database.read_snapshot() as connection:
            now, steady_now = self._database.now(connection), self._database.steady_now(connection)
            return read_snapshot(connection, now, steady_now, has_specs=has_specs, limit=limit)

    def backlog(self) -> Backlog:
        with self._database.read() as connection:
            rows = connection.execute(_OPEN_COUNTS).mappings().all()
            oldest_queued_at = connection.execute(_OLDEST).scalar()
            workers = read_alive(connection, self._database.steady_now(connection))
        counts = tuple(read_record(JobCount, {**row}) for row in rows)
        return Backlog(counts, oldest_queued_at, tuple(workers))

    def measurements(self, model: str) -> Sequence[Measurement]:
        statement = (
            sa.select(jobs.c.spec, jobs.c.measured)
            .where(sa.text("jobs.state = 'completed'"), jobs.c.model == model, jobs.c.route == Route.GPU)
            .order_by(jobs.c.finished_at.desc())
            .limit(_MAX_MEASUREMENTS)
        )
        with self._database.read() as connection:
            rows = connection.execute(statement).mappings().all()
        return [Measurement(to_spec(row["spec"]), to_measured(row) or StageSeconds()) for row in rows]

    def gpu_seconds_today(self, tenant_id: TenantId) -> float:
        statement = sa.select(accounts).where(accounts.c.tenant_id == tenant_id)
        with self._database.read() as connection:
            account = connection.execute(statement).mappings().one_or_none()
            now = self._database.now(connection)
        return used_today(account, now) if account is not None else 0.0

    def statistics(self, *, max_tenants: int = 0) -> Statistics:
        with self._database.read() as connection:
            ended = connection.execute(_ENDED_COUNTS).mappings().all()
            routed = connection.execute(_ROUTED_COUNTS).mappings().all()
            histograms = read_histograms(connection, self._database.now(connection), max_tenants)
            slo = read_totals(connection)
        return Statistics(
            ended=tuple(read_record(EndedJobs, {**row, "reason": row["reason"] or None}) for row in ended),
            histograms=tuple(histograms),
            slo=tuple(slo),
            routed=tuple(read_record(RoutedJobs, {**row}) for row in routed),
        )

    def expired(self, *, limit: int = 100) -> Sequence[Job]:
        with self._database.read() as connection:
            now = self._database.now(connection)
            statement = (
                sa.select(*UNSEALED)
                .where(sa.text("jobs.expires_at IS NOT NULL"), jobs.c.expires_at <= now)
                .order_by(jobs.c.expires_at)
                .limit(limit)
            )
            return [to_job(row) for row in connection.execute(statement).mappings()]


def _conditions(where: JobFilter) -> Iterator[sa.ColumnElement[bool]]:
    if where.model is not None:
        yield jobs.c.model == where.model
    if where.states is not None:
        yield jobs.c.state.in_([state.value for state in where.states])
    if where.created_from is not None:
        yield jobs.c.created_at >= where.created_from
    if where.created_before is not None:
        yield jobs.c.created_at < where.created_before
    if where.prompt_hmac is not None:
        yield jobs.c.prompt_hmac == where.prompt_hmac


def _find_row(connection: sa.Connection, tenant_id: TenantId, job_id: JobId) -> Row:
    statement = sa.select(jobs).where(jobs.c.id == job_id, jobs.c.tenant_id == tenant_id)
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise JobNotFound("no such video")
    return row


def _find_place(
    connection: sa.Connection, tenant_id: TenantId, job_id: JobId
) -> tuple[sa.ColumnElement[int], int]:
    """What orders a tenant's jobs, and the value of this job, which may have been removed.

    The numbers of the audit records have the order of the jobs, because both are assigned under the lock of
    the tenant's account, and they outlive the jobs. Raises JobNotFound.
    """
    same = sa.select(jobs.c.seq).where(jobs.c.id == job_id, jobs.c.tenant_id == tenant_id)
    if (seq := connection.execute(same).scalar_one_or_none()) is not None:
        return jobs.c.seq, seq
    removed = _CREATIONS.where(audit_records.c.job_id == job_id, audit_records.c.tenant_id == tenant_id)
    if (number := connection.execute(removed).scalar_one_or_none()) is None:
        raise JobNotFound("no such video")
    return _CREATION, number


def _in_groups(ids: list[JobId]) -> Sequence[list[JobId]]:
    return [ids[i : i + _IDS_PER_QUERY] for i in range(0, len(ids), _IDS_PER_QUERY)]
