"""Appends to the chains, in the caller's transaction: a change and its record are committed together.

The head row of a tenant is the lock of its chain. A transaction that changes jobs has locked the tenant's
account before, and locks heads in the order of tenants.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from filmgate.audit.records import ORIGIN, AuditRecord, Entry, Head, chain_hash
from filmgate.database.schema import audit_heads, audit_records
from filmgate.database.upserts import insert_into
from filmgate.jobs import TenantId

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
    last, previous = _reserve(connection, tenant_id, len(entries))
    rows = []
    for number, entry in enumerate(entries, last - len(entries) + 1):
        text = entry.to_text()
        fields = (tenant_id, number, now, entry.action.value, entry.job_id, entry.clip_sha256, text)
        previous = chain_hash(previous, fields)
        rows.append(dict(zip(_COLUMNS, (*fields, previous), strict=True)))
    connection.execute(_INSERT, rows)
    connection.execute(_SET_HASH, {"own": tenant_id, "newest": previous})


def _reserve(connection: sa.Connection, tenant_id: TenantId, count: int) -> tuple[int, str]:
    """The last of `count` new numbers, and the hash of the record before them. Locks the head."""
    first = {"tenant_id": tenant_id, "number": count, "hash": ORIGIN, "base_hash": ORIGIN}
    insert = insert_into(connection, audit_heads).values(first | {"signed_hash": ORIGIN, "signature": ""})
    taken = {"number": audit_heads.c.number + insert.excluded.number}
    upsert = insert.on_conflict_do_update(index_elements=["tenant_id"], set_=taken)
    head = connection.execute(upsert.returning(audit_heads.c.number, audit_heads.c.hash)).one()
    return head.number, head.hash


_COLUMNS = ("tenant_id", "number", "at", "action", "job_id", "clip_sha256", "details", "hash")


def to_record(row: sa.RowMapping) -> AuditRecord:
    """The record of a row, whose texts may be bytes. Bytes that are not UTF-8 never match the hash."""
    return AuditRecord(**_to_texts(row))


def to_head(row: sa.RowMapping) -> Head:
    return Head(**_to_texts(row))


def _to_texts(row: sa.RowMapping) -> dict[str, Any]:
    return {
        name: value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        for name, value in row.items()
    }
