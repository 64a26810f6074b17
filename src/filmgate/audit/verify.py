"""Verifies chains: every hash, every gap, the signed heads and their anchors. Pure; the caller reads."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from filmgate.audit.records import AuditRecord, Head
from filmgate.audit.signing import is_signed_by
from filmgate.jobs import TenantId


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that does not verify. `number` is the record it names, 0 for the head of the chain."""

    tenant_id: TenantId
    number: int
    problem: str

    def __str__(self) -> str:
        place = f"record {self.number}" if self.number else "head"
        return f"{self.tenant_id} {place}: {self.problem}"


@dataclass(slots=True)
class Verification:
    """What was checked, and everything that does not verify."""

    records: int = 0
    tenants: int = 0
    unsigned: int = 0  # records after the last signed head
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
) -> Verification:
    """Verify chains, ordered by tenant and number, against their heads and anchors.

    Without a public key, signatures are not checked. A chain is not trusted beyond its last signed head:
    `unsigned` counts the records after it. An anchored head newer than `retained_since` proves that its
    records must still exist.
    """
    result = Verification()
    known = {head.tenant_id: head for head in heads}
    witnesses: dict[TenantId, list[Head]] = {}
    for anchor in anchors:
        witnesses.setdefault(anchor.tenant_id, []).append(anchor)
    chains = groupby(records, key=lambda record: record.tenant_id)
    for tenant_id, chain in _with_empty(chains, sorted(known.keys() | witnesses.keys())):
        head, anchored = known.get(tenant_id), witnesses.get(tenant_id, [])
        if head is None:
            result.faults.append(Fault(tenant_id, 0, "the head of the chain is missing"))
            head = Head(tenant_id, 0, "")
        _verify_chain(chain, head, anchored, result)
        result.faults.extend(_find_early_deletion(head, anchored, retained_since))
        if public_key is not None:
            result.faults.extend(_check_signatures(head, anchored, public_key))
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
    for record in chain:
        result.records += 1
        result.faults.extend(walk.step(record))
    result.faults.extend(walk.end())
    result.tenants += 1
    result.unsigned += max(walk.number - max(head.signed_number, head.base_number), 0)
    result.anchored += len(anchors)


def _find_early_deletion(
    head: Head, anchors: Sequence[Head], retained_since: float | None
) -> Iterator[Fault]:
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


def _claims(head: Head, anchors: Sequence[Head]) -> Mapping[int, tuple[str, str]]:
    """The hash that a signed or anchored head gives to a record, and which head that is."""
    claims = {anchor.signed_number: (anchor.signed_hash, "an anchored head") for anchor in anchors}
    if head.signed_number:
        claims[head.signed_number] = claims.get(head.signed_number, (head.signed_hash, "the signed head"))
    return claims


def _check_signatures(head: Head, anchors: Sequence[Head], public_key: str) -> Iterator[Fault]:
    for signed, name in [(head, "the head"), *((anchor, "an anchored head") for anchor in anchors)]:
        if not signed.signature:
            continue
        if not is_signed_by(public_key, signed.payload, signed.signature):
            yield Fault(head.tenant_id, signed.signed_number, f"{name} at this record has no valid signature")


class _Walk:
    """One pass over a chain. After a fault it goes on, so that one changed byte names one record."""

    def __init__(self, head: Head, claims: Mapping[int, tuple[str, str]]) -> None:
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
        claim = self._claims.get(record.number)
        if claim is not None and claim[0] not in self._previous:
            yield self._fault(record.number, f"its hash is not the one of {claim[1]}: it was replaced")

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
            yield self._fault(
                self.number + 1, f"{self._claims[beyond][1]} is at record {beyond}: the end was cut off"
            )

    def _fault(self, number: int, problem: str) -> Fault:
        return Fault(self._head.tenant_id, number, problem)
