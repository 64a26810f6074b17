"""Background work on the chains: sign and anchor new heads, delete records past their retention."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

import sqlalchemy as sa

from filmgate.audit.anchors import Anchor
from filmgate.audit.log import AuditLog, Query
from filmgate.audit.records import Head
from filmgate.audit.signing import Signer
from filmgate.audit.verify import verify
from filmgate.database import Database
from filmgate.database.schema import audit_heads, audit_records
from filmgate.telemetry.logs import Log

log = Log("audit")

_DELETE_BATCH = 10_000


class Checkpoints:
    """Run it periodically, in any number of servers: every step is idempotent."""

    def __init__(
        self, database: Database, signer: Signer | None, anchor: Anchor, retention_seconds: float
    ) -> None:
        self._database = database
        self._log = AuditLog(database)
        self._signer = signer
        self._anchor = anchor
        self._retention_seconds = retention_seconds

    def run(self) -> int:
        """Delete old records, then sign and anchor every head that has moved. Returns how many."""
        for head in self._log.heads():
            self._delete_old(head)
        moved = [head for head in self._log.heads() if head.number > head.signed_number]
        signed = [self._sign(head) for head in moved if self._is_intact(head)]
        if signed:
            # Anchored first: a head that counts as signed is also anchored.
            self._anchor.put(signed)
            self._save(signed)
        return len(signed)

    def _is_intact(self, head: Head) -> bool:
        """Whether the records since the last signature are chained. A broken chain is never signed."""
        number, newest = max(
            (head.base_number, head.base_hash), (head.signed_number, head.signed_hash), key=itemgetter(0)
        )
        since = Head(head.tenant_id, head.number, head.hash, base_number=number, base_hash=newest)
        records = self._log.records(Query(head.tenant_id), after=(head.tenant_id, number))
        new = itertools.takewhile(lambda record: record.number <= head.number, records)
        if not (faults := verify(new, [since]).faults):
            return True
        log.error(
            "the audit log was changed; run `filmgate audit verify`",
            tenant_id=head.tenant_id,
            reason=str(faults[0]),
        )
        return False

    def _sign(self, head: Head) -> Head:
        with self._database.read() as connection:
            now = self._database.now(connection)
        head = replace(head, signed_number=head.number, signed_hash=head.hash, signed_at=now, signature="")
        return replace(head, signature=self._signer.sign(head.payload)) if self._signer else head

    def _save(self, heads: Iterable[Head]) -> None:
        names = ("signed_number", "signed_hash", "signed_at", "signature")
        for head in heads:
            statement = sa.update(audit_heads).where(
                audit_heads.c.tenant_id == head.tenant_id,
                # Another server may have signed a later head meanwhile, or deleted more.
                audit_heads.c.signed_number <= head.signed_number,
                audit_heads.c.base_number == head.base_number,
            )
            with self._database.write() as connection:
                connection.execute(statement.values({name: getattr(head, name) for name in names}))

    def _delete_old(self, head: Head) -> None:
        """Delete the oldest records, if they are past retention and covered by a signed head."""
        with self._database.read() as connection:
            cutoff = self._database.now(connection) - self._retention_seconds
            last = _find_last_old(connection, head, cutoff)
        if last is None:
            return
        number, newest = last
        # The signature covers the base: a head with another base has moved and is signed again.
        base = {"base_number": number, "base_hash": newest, "signed_number": 0, "signed_hash": ""}
        with self._database.write() as connection:
            moved = connection.execute(
                sa.update(audit_heads)
                .where(
                    audit_heads.c.tenant_id == head.tenant_id,
                    audit_heads.c.base_number == head.base_number,
                )
                .values(base | {"signature": "", "signed_at": 0.0})
            )
            if moved.rowcount:
                old = (audit_records.c.tenant_id == head.tenant_id, audit_records.c.number <= number)
                connection.execute(sa.delete(audit_records).where(*old))
        log.info("old audit records deleted", tenant_id=head.tenant_id)


def _find_last_old(connection: sa.Connection, head: Head, cutoff: float) -> tuple[int, str] | None:
    """The last of the oldest records that are past retention: (number, hash). At most one batch of them."""
    columns = (audit_records.c.number, audit_records.c.hash, audit_records.c.at)
    oldest = (
        sa.select(*columns)
        .where(audit_records.c.tenant_id == head.tenant_id)
        .order_by(audit_records.c.number)
        .limit(_DELETE_BATCH)
    )
    first = connection.execute(oldest.limit(1)).first()
    if first is None or first.at >= cutoff:
        return None
    last: tuple[int, str] | None = None
    for row in connection.execute(oldest):
        if row.at >= cutoff:
            break
        last = (row.number, row.hash)
    return last
