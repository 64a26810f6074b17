"""Background work on the chains: sign and anchor new heads, delete records past their retention."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import sqlalchemy as sa

from filmgate.audit.anchors import Anchor
from filmgate.audit.log import AuditLog, Query
from filmgate.audit.records import AuditRecord, Head
from filmgate.audit.signing import Signer, is_signed_by
from filmgate.audit.verify import Fault, find_early_deletion, verify
from filmgate.database import Database
from filmgate.database.schema import audit_heads, audit_records
from filmgate.errors import RunError
from filmgate.jobs import TenantId
from filmgate.telemetry.logs import Log

log = Log("audit")

# Heads are signed some time after their last record, so an anchor proves its records' age only roughly.
SIGNING_DELAY_SECONDS = 86400.0
_DELETE_BATCH = 10_000
_CHANGED = "the audit log was changed; run `filmgate audit verify`"


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
        """Sign and anchor every head that has moved, and delete old records. Returns how many were signed.

        Raises RunError if a chain is broken, after the others were signed.
        """
        with self._database.read() as connection:
            now = self._database.now(connection)
        key = self._signer.public_key if self._signer is not None else None
        chains = _Chains(self._log, self._anchor, key, now - self._retention_seconds)
        checked = [chains.check(head.tenant_id) for head in self._log.heads() if chains.is_due(head)]
        signed = [replace(each, next=self._sign(each.next, now)) for each in checked if each.fault is None]
        if signed:
            # Anchored first: a head that counts as signed is also anchored.
            self._anchor.put([each.next for each in signed])
        for each in signed:
            self._save(each)
        broken = [each.fault for each in checked if each.fault is not None]
        for fault in broken:
            log.error(_CHANGED, tenant_id=fault.tenant_id, reason=str(fault))
        if broken:
            raise RunError(_CHANGED)
        return len(signed)

    def _sign(self, head: Head, now: float) -> Head:
        head = replace(head, signed_number=head.number, signed_hash=head.hash, signed_at=now, signature="")
        return replace(head, signature=self._signer.sign(head.payload)) if self._signer else head

    def _save(self, checked: "_Checked") -> None:
        """Store the signed head and delete the records that its base replaces, both or neither."""
        stored, head = checked.stored, checked.next
        names = ("base_number", "base_hash", "signed_number", "signed_hash", "signed_at", "signature")
        own = audit_heads.c.tenant_id == head.tenant_id
        # Another server may have moved the head meanwhile.
        is_same = (
            audit_heads.c.base_number == stored.base_number,
            audit_heads.c.signed_number == stored.signed_number,
        )
        old = (audit_records.c.tenant_id == head.tenant_id, audit_records.c.number <= head.base_number)
        with self._database.write() as connection:
            values = {name: getattr(head, name) for name in names}
            if connection.execute(sa.update(audit_heads).where(own, *is_same).values(values)).rowcount == 0:
                return
            deleted = connection.execute(sa.delete(audit_records).where(*old)).rowcount
        if deleted:
            log.info("old audit records deleted", tenant_id=head.tenant_id)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A head as it is stored, the head to sign next, and the first fault of its chain."""

    stored: Head
    next: Head
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class _Chains:
    """Checks chains before they are signed.

    The database is not trusted: a chain must continue the head that was anchored last.
    """

    log: AuditLog
    anchor: Anchor
    public_key: str | None
    cutoff: float  # records older than this are past their retention

    def is_due(self, head: Head) -> bool:
        """Whether there is something to sign or to delete."""
        is_new = (head.number, head.hash) != (head.signed_number, head.signed_hash)
        is_unsigned = self.public_key is not None and not self._is_signed(head)
        return is_new or is_unsigned or bool(self._find_old(head, head.signed_number, limit=1))

    def check(self, tenant_id: TenantId) -> _Checked:
        # The anchor is read before the head: another server may move both in between.
        anchored = self.anchor.newest(tenant_id)
        (head,) = self.log.heads(tenant_id)
        number, newest = head.base_number, head.base_hash
        if anchored is not None:
            number, newest = anchored.signed_number, anchored.signed_hash
        # Only records that a head covers may be deleted.
        old = self._find_old(head, number, limit=1) and self._find_old(head, number, limit=_DELETE_BATCH)
        fault = next(self._find_faults(head, replace(head, base_number=number, base_hash=newest), old), None)
        moved = replace(head, base_number=old[-1].number, base_hash=old[-1].hash) if old else head
        return _Checked(head, moved, fault)

    def _find_faults(self, head: Head, trusted: Head, old: Sequence[AuditRecord]) -> Iterator[Fault]:
        """The records since the trusted base must be chained, and so must the records to be deleted."""
        yield from _verify(self._records_after(trusted), trusted)
        if old:
            yield from _verify(old, replace(head, number=old[-1].number, hash=old[-1].hash))
        if head.base_number and not self._is_signed(head):
            anchored = self.anchor.newest(head.tenant_id, until=head.base_number)
            since = self.cutoff + SIGNING_DELAY_SECONDS
            yield from find_early_deletion(head, [anchored] if anchored is not None else [], since)

    def _records_after(self, base: Head) -> Iterator[AuditRecord]:
        records = self.log.records(Query(base.tenant_id), after=(base.tenant_id, base.base_number))
        return takewhile(lambda record: record.number <= base.number, records)

    def _is_signed(self, head: Head) -> bool:
        return self.public_key is not None and is_signed_by(self.public_key, head.payload, head.signature)

    def _find_old(self, head: Head, until: int, limit: int) -> Sequence[AuditRecord]:
        """The oldest records, if they are past retention, up to the record `until`."""
        oldest = self.log.page(Query(head.tenant_id), after=(head.tenant_id, head.base_number), limit=limit)

        def is_old(record: AuditRecord) -> bool:
            # SQLite stores any type in any column.
            return isinstance(record.at, float) and record.at < self.cutoff and record.number <= until

        return list(takewhile(is_old, oldest))


def _verify(records: Iterable[AuditRecord], head: Head) -> Iterator[Fault]:
    """Only the chain: what the head claims to be signed does not count."""
    yield from verify(records, [replace(head, signed_number=0)]).faults
