"""The audit log: what was made from what, by whom, when. Append-only and hash-chained per tenant."""

from filmgate.audit.records import Action, Actor, ActorKind, AuditRecord, Entry

__all__ = ["Action", "Actor", "ActorKind", "AuditRecord", "Entry"]
