"""Reads the audit log, and appends records that do not belong to the change of a job."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from filmgate.audit.chain import append, to_head, to_record
from filmgate.audit.records import AuditRecord, Entry, Head
from filmgate.database import Database
from filmgate.database.schema import audit_heads, audit_records
from filmgate.jobs import JobId, TenantId

_BATCH = 5000
# SQLite's driver rejects a text that is not UTF-8. Read as bytes, such a record can still be named.
_RAW_COLUMNS: tuple[sa.ColumnElement[Any], ...] = tuple(
    sa.cast(column, sa.LargeBinary).label(column.name) if isinstance(column.type, sa.Text) else column
    for column in audit_records.c
)
_ORDER = (audit_records.c.tenant_id, audit_records.c.number)
_CURSOR = sa.tuple_(*_ORDER)


@dataclass(frozen=True, slots=True)
class Query:
    """Which records: all conditions that are set must hold."""

    tenant_id: TenantId | None = None
    job_id: JobId | None = None
    clip_sha256: str | None = None


class AuditLog:
    """Appends and reads records. All methods block and raise QueueUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._columns = _RAW_COLUMNS if database.is_sqlite else tuple(audit_records.c)

    def record(self, tenant_id: TenantId, *entries: Entry) -> None:
        """Append entries; durable when this returns."""
        with self._database.write() as connection:
            append(connection, tenant_id, entries, self._database.now(connection))

    def page(
        self, query: Query, *, after: tuple[TenantId, int] | None = None, limit: int = 100
    ) -> Sequence[AuditRecord]:
        """Records by tenant and number, after the record with this tenant and number."""
        statement = _select(query, self._columns).limit(limit)
        if after is not None:
            statement = statement.where(sa.tuple_(*map(sa.literal, after)) < _CURSOR)
        with self._database.read() as connection:
            return [to_record(row) for row in connection.execute(statement).mappings()]

    def newest(self, query: Query, *, limit: int = 100) -> Sequence[AuditRecord]:
        """The newest records, oldest of them first."""
        statement = _select(query, self._columns).order_by(None)
        statement = statement.order_by(audit_records.c.at.desc(), audit_records.c.number.desc()).limit(limit)
        with self._database.read() as connection:
            rows = connection.execute(statement).mappings().all()
        return [to_record(row) for row in reversed(rows)]

    def records(
        self, query: Query | None = None, after: tuple[TenantId, int] | None = None
    ) -> Iterator[AuditRecord]:
        """All records by tenant and number, after this tenant and number, read in batches."""
        while batch := self.page(query or Query(), after=after, limit=_BATCH):
            yield from batch
            after = (batch[-1].tenant_id, batch[-1].number)

    def records_until(
        self, heads: Sequence[Head], tenant_id: TenantId | None = None
    ) -> Iterator[AuditRecord]:
        """All records except records that were appended after the heads were read."""
        ends, started = {head.tenant_id: head.number for head in heads}, time.time()
        for record in self.records(Query(tenant_id)):
            end = ends.get(record.tenant_id)
            # A chain without a head is either damaged or younger than the heads.
            if record.number <= end if end is not None else record.at < started:
                yield record

    def heads(self, tenant_id: TenantId | None = None) -> Sequence[Head]:
        """The heads of the chains, by tenant."""
        statement = sa.select(audit_heads).order_by(audit_heads.c.tenant_id)
        if tenant_id is not None:
            statement = statement.where(audit_heads.c.tenant_id == tenant_id)
        with self._database.read() as connection:
            return [to_head(row) for row in connection.execute(statement).mappings()]


def _select(query: Query, columns: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    wanted = {
        audit_records.c.tenant_id: query.tenant_id,
        audit_records.c.job_id: query.job_id,
        audit_records.c.clip_sha256: query.clip_sha256,
    }
    conditions = [column == value for column, value in wanted.items() if value is not None]
    return sa.select(*columns).where(*conditions).order_by(*_ORDER)
