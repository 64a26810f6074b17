"""Verifies chains: every hash, every gap, the signed heads and their anchors. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from filmgate.audit.records import AuditRecord, Head
from filmgate.audit.signing import is_signed_by
from filmgate.jobs import TenantId

_UNSIGNED = (
    "no signature covers these records, so they may have been rewritten; compare them with the database of "
    "the installation or with an anchored head. If they were younger than the first checkpoint, export again"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that does not verify. `number` is the record it names, 0 for the head of the chain.

    Without a tenant, it is about the anchors.
    """

    tenant_id: TenantId | None
    number: int
    problem: str

    def __str__(self) -> str:
        place = f"record {self.number}" if self.number else "head"
        return f"{self.tenant_id} {place}: {self.problem}" if self.tenant_id else f"anchor: {self.problem}"


@dataclass(slots=True)
class Verification:
    """What was checked, and everything that does not verify."""

    records: int = 0
    tenants: int = 0
    unsigned: int = 0  # records after the last signed head; all of them if signatures are not checked
    has_checked_signatures: bool = False
    anchored: int = 0  # anchored heads that were compared
    faults: list[Fault] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        return not self.faults


def verify(
    records: Iterable[AuditRecord],
    heads: Iterable[Head],
    *,
    public_key: str | None = None,
    anchors: Iterable[Head] = (),
    retained_since: float | None = None,
    must_be_signed: bool = False,
) -> Verification:
    """Verify chains, ordered by tenant and number, against their heads and anchors.

    Without a public key, signatures are not checked. A chain is not trusted beyond its last signed head:
    `unsigned` counts the records after it, which are all records if the head has no signature. An anchored
    head newer than `retained_since` proves that its records must still exist. If the chains `must_be_signed`,
    one without a signed head is a fault: nothing else proves an export.
    """
    result = Verification(has_checked_signatures=public_key is not None)
    known = {head.tenant_id: head for head in heads}
    anchors_of: dict[TenantId, list[Head]] = {}
    for anchor in anchors:
        anchors_of.setdefault(anchor.tenant_id, []).append(anchor)
    chains = groupby(records, key=lambda record: record.tenant_id)
    for tenant_id, chain in _with_empty(chains, sorted(known.keys() | anchors_of.keys())):
        head, anchored = known.get(tenant_id), anchors_of.get(tenant_id, [])
        if head is None:
            result.faults.append(Fault(tenant_id, 0, "the head of the chain is missing"))
            head = Head(tenant_id, 0, "")
        _verify_chain(chain, head, anchored, result)
        result.faults.extend(find_early_deletion(head, anchored, retained_since))
        if public_key is not None:
            result.faults.extend(_check_signatures(head, anchored, public_key, must_be_signed=must_be_signed))
    return result


def _with_empty(
    chains: Iterable[tuple[TenantId, Iterable[AuditRecord]]], expected: Iterable[TenantId]
) -> Iterator[tuple[TenantId, Iterable[AuditRecord]]]:
    """The chains, and an empty one for every expected tenant that has no records."""
    seen: set[TenantId] = set()
    for tenant_id, chain in chains:
        seen.add(tenant_id)
        yield tenant_id, chain
    yield from ((tenant_id, ()) for tenant_id in expected if tenant_id not in seen)


def _verify_chain(
    chain: Iterable[AuditRecord], head: Head, anchors: Sequence[Head], result: Verification
) -> None:
    walk = _Walk(head, _claims(head, anchors))
    result.faults.extend(walk.check_claims())
    for record in chain:
        result.records += 1
        result.faults.extend(walk.step(record))
    result.faults.extend(walk.end())
    result.tenants += 1
    is_signed = head.signature and result.has_checked_signatures
    result.unsigned += max(walk.number - (head.signed_number if is_signed else head.base_number), 0)
    result.anchored += len(anchors)


def find_early_deletion(head: Head, anchors: Sequence[Head], retained_since: float | None) -> Iterator[Fault]:
    """Retention is the only deletion. Records of a recently anchored head cannot be that old."""
    if retained_since is None:
        return
    early = [
        a.signed_number
        for a in anchors
        if a.signed_number <= head.base_number and a.signed_at > retained_since
    ]
    if early:
        yield Fault(head.tenant_id, max(early), "the record was deleted before the end of its retention")


def _claims(head: Head, anchors: Sequence[Head]) -> Mapping[int, Mapping[str, str]]:
    """By record, the hashes that signed and anchored heads give to it, each with the name of the head."""
    claims: dict[int, dict[str, str]] = {}
    for signed, name in [*((anchor, "an anchored head") for anchor in anchors), (head, "the signed head")]:
        if signed.signed_number:
            claims.setdefault(signed.signed_number, {}).setdefault(signed.signed_hash, name)
    return claims


def _check_signatures(
    head: Head, anchors: Sequence[Head], public_key: str, *, must_be_signed: bool
) -> Iterator[Fault]:
    """A head that claims more than an empty chain needs a signature.

    Heads that were anchored before the installation had a key are not signed.
    """
    if not head.signature and must_be_signed and head.number:
        yield Fault(head.tenant_id, 0, _UNSIGNED)
    elif not head.signature and (head.signed_number or head.base_number):
        yield Fault(head.tenant_id, head.signed_number, "the head has no signature")
    for signed, name in [(head, "the head"), *((anchor, "an anchored head") for anchor in anchors)]:
        if signed.signature and not is_signed_by(public_key, signed.payload, signed.signature):
            yield Fault(head.tenant_id, signed.signed_number, f"{name} at this record has no valid signature")


class _Walk:
    """One pass over a chain. It continues after a fault, and reports one changed byte for one record only."""

    def __init__(self, head: Head, claims: Mapping[int, Mapping[str, str]]) -> None:
        self._head = head
        self._claims = claims
        self.number = head.base_number
        # Hashes the next record may build on: two after a record whose content and hash differ.
        self._previous = {head.base_hash}
        self._newest = head.base_hash

    def step(self, record: AuditRecord) -> Iterator[Fault]:
        if record.number <= self._head.base_number:
            yield self._fault(record.number, "retention has deleted this record, but it exists")
            return
        if record.number != self.number + 1:
            yield from self._missing(record.number)
            self._previous = set()
        self.number = record.number
        computed = {record.chain(previous) for previous in self._previous}
        if self._previous and record.hash not in computed:
            yield self._fault(record.number, "the record does not match its hash: it was changed")
        self._previous, self._newest = {record.hash, *computed}, record.hash
        yield from self.check_claims()

    def check_claims(self) -> Iterator[Fault]:
        """Every head at this record must have its hash."""
        for claimed, name in self._claims.get(self.number, {}).items():
            if claimed not in self._previous:
                yield self._fault(self.number, f"its hash is not the one of {name}: it was replaced")

    def _missing(self, before: int) -> Iterator[Fault]:
        first, last = self.number + 1, before - 1
        which = f"records {first} to {last} are missing" if last > first else "the record is missing"
        yield self._fault(first, which)

    def end(self) -> Iterator[Fault]:
        """The chain must reach its head and every claim."""
        head = self._head
        if self.number < head.number:
            yield from self._missing(head.number + 1)
        elif self.number > head.number:
            yield self._fault(0, f"the head is at record {head.number}, the chain at {self.number}")
        elif head.hash not in self._previous:
            yield self._fault(0, "the hash of the head is not the hash of the last record")
        beyond = max(self._claims, default=0)
        if beyond > max(self.number, head.number):
            name = next(iter(self._claims[beyond].values()))
            yield self._fault(self.number + 1, f"{name} is at record {beyond}: the end was cut off")

    def _fault(self, number: int, problem: str) -> Fault:
        return Fault(self._head.tenant_id, number, problem)
