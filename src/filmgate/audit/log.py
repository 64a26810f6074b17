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
        self._select = _select_raw if database.is_sqlite else sa.select
        self._to_literal = _to_raw_literal if database.is_sqlite else sa.literal

    def record(self, tenant_id: TenantId, *entries: Entry) -> None:
        """Append entries; durable when this returns."""
        with self._database.write() as connection:
            append(connection, tenant_id, entries, self._database.now(connection))

    def page(
        self, query: Query, *, after: tuple[TenantId, int] | None = None, limit: int = 100
    ) -> Sequence[AuditRecord]:
        """Records by tenant and number, after the record with this tenant and number."""
        statement = self._find(query).order_by(*_ORDER).limit(limit)
        if after is not None:
            statement = statement.where(sa.tuple_(self._to_literal(after[0]), sa.literal(after[1])) < _CURSOR)
        with self._database.read() as connection:
            return [to_record(row) for row in connection.execute(statement).mappings()]

    def newest(self, query: Query, *, limit: int = 100) -> Sequence[AuditRecord]:
        """The newest records, oldest of them first."""
        newest_first = (audit_records.c.at.desc(), audit_records.c.number.desc())
        statement = self._find(query).order_by(*newest_first).limit(limit)
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
            is_young = isinstance(record.at, float) and record.at >= started
            if not is_young if end is None else record.number <= end:
                yield record

    def heads(self, tenant_id: TenantId | None = None) -> Sequence[Head]:
        """The heads of the chains, by tenant."""
        statement = self._select(audit_heads).order_by(audit_heads.c.tenant_id)
        if tenant_id is not None:
            statement = statement.where(audit_heads.c.tenant_id == self._to_literal(tenant_id))
        with self._database.read() as connection:
            return [to_head(row) for row in connection.execute(statement).mappings()]

    def _find(self, query: Query) -> sa.Select[Any]:
        wanted = {
            audit_records.c.tenant_id: query.tenant_id,
            audit_records.c.job_id: query.job_id,
            audit_records.c.clip_sha256: query.clip_sha256,
        }
        conditions = (name == self._to_literal(value) for name, value in wanted.items() if value is not None)
        return self._select(audit_records).where(*conditions)


def _select_raw(table: sa.Table) -> sa.Select[Any]:
    """A select on SQLite that reads every row which someone may have changed.

    The driver rejects a text that is not UTF-8: read as bytes, such a row can still be named. SQLite stores
    any type in any column: a row whose number is none counts as missing.
    """
    columns: list[sa.ColumnElement[Any]] = [
        sa.cast(column, sa.LargeBinary).label(column.name) if isinstance(column.type, sa.Text) else column
        for column in table.c
    ]
    numbers = [column for column in table.c if isinstance(column.type, sa.BigInteger)]
    return sa.select(*columns).where(*(sa.func.typeof(column) == "integer" for column in numbers))


def _to_raw_literal(text: str) -> sa.ColumnElement[str]:
    """The driver binds no text that is not UTF-8 either."""
    return sa.cast(text.encode("utf-8", "surrogateescape"), sa.Text)
