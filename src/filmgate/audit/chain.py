"""Appends to the chains, in the caller's transaction: a change and its record are committed together.

The head row of a tenant is the lock of its chain. A transaction that changes jobs has locked the tenant's
account before, and locks heads in the order of tenants.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from filmgate.audit.records import ORIGIN, AuditRecord, Entry, Head, chain_hash
from filmgate.database.schema import audit_heads, audit_records
from filmgate.jobs import TenantId

_Insert = Callable[[sa.Table], sqlite.Insert | postgresql.Insert]


def _take_statement(insert: _Insert) -> sa.Executable:
    """Reserve numbers and lock the head, which still has the hash of the record before them."""
    statement = insert(audit_heads).values(hash=ORIGIN, base_hash=ORIGIN, signed_hash=ORIGIN, signature="")
    taken = audit_heads.c.number + statement.excluded.number
    return statement.on_conflict_do_update(index_elements=["tenant_id"], set_={"number": taken}).returning(
        audit_heads.c.number, audit_heads.c.hash
    )


_TAKE = {"sqlite": _take_statement(sqlite.insert), "postgresql": _take_statement(postgresql.insert)}
_INSERT = sa.insert(audit_records)
_SET_HASH = (
    sa.update(audit_heads)
    .where(audit_heads.c.tenant_id == sa.bindparam("own"))
    .values(hash=sa.bindparam("newest"))
)


def append(connection: sa.Connection, tenant_id: TenantId, entries: Sequence[Entry], now: float) -> None:
    """Append the entries to the tenant's chain, in this order."""
    if not entries:
        return
    taken = {"tenant_id": tenant_id, "number": len(entries)}
    last, previous = connection.execute(_TAKE[connection.dialect.name], taken).one()
    rows = []
    for number, entry in enumerate(entries, last - len(entries) + 1):
        text = entry.to_text()
        fields = (tenant_id, number, now, entry.action.value, entry.job_id, entry.clip_sha256, text)
        previous = chain_hash(previous, fields)
        rows.append(dict(zip(_COLUMNS, (*fields, previous), strict=True)))
    connection.execute(_INSERT, rows)
    connection.execute(_SET_HASH, {"own": tenant_id, "newest": previous})


_COLUMNS = ("tenant_id", "number", "at", "action", "job_id", "clip_sha256", "details", "hash")


def to_record(row: sa.RowMapping) -> AuditRecord:
    """The record of a row, whose texts may be bytes. Bytes that are not UTF-8 never match the hash."""
    return AuditRecord(**{name: _to_text(row[name]) for name in _COLUMNS})


def _to_text(value: Any) -> Any:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def to_head(row: sa.RowMapping) -> Head:
    values: dict[str, Any] = dict(row)
    return Head(**values)
