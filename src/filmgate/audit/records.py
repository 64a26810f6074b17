"""The records of the audit log and the hash that chains them. Never contains request text."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from filmgate.jobs import JobId, TenantId

# The hash before the first record of a chain.
ORIGIN = ""
_YEAR_10000 = 253402300800


class Action(StrEnum):
    """What a record is about."""

    CREATED = "created"  # a request became a job
    REJECTED = "rejected"  # screening rejected a request
    STARTED = "started"  # a worker leased the job
    REQUEUED = "requeued"  # an attempt ended without a clip
    REROUTED = "rerouted"  # the job moved to another route
    COMPLETED = "completed"  # the clip is durable
    FAILED = "failed"  # the job ended without a clip
    CANCELLED = "cancelled"  # a caller requested to stop the job
    DELETED = "deleted"  # the job and its clip were deleted
    READ = "read"  # bytes of the clip or of a still were served
    LINKED = "linked"  # a link was issued that needs no API key
    FORGOTTEN = "forgotten"  # the tenant's encryption key was destroyed
    TENANT_CREATED = "tenant_created"
    TENANT_CHANGED = "tenant_changed"  # quotas, scopes, certificate, policy or state
    TENANT_DELETED = "tenant_deleted"
    KEY_ROTATED = "key_rotated"  # an API key was created; older keys expire


class ActorKind(StrEnum):
    """How the caller was identified."""

    KEY = "key"
    CERTIFICATE = "certificate"
    OPEN = "open"  # an open server on a loopback address
    LINK = "link"
    COMMAND = "command"  # a `filmgate` command with access to the database
    SYSTEM = "system"  # the service itself, such as retention or a worker


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did it. `name` is the id of the API key or the certificate's subject.

    `user` is the end user as the client names it, in the Filmgate-User header.
    """

    kind: ActorKind
    name: str | None = None
    user: str | None = None

    def to_fields(self) -> dict[str, str]:
        fields = {"by": self.kind.value, "key": self.name, "user": self.user}
        return {name: value for name, value in fields.items() if value is not None}


SYSTEM = Actor(ActorKind.SYSTEM)
COMMAND = Actor(ActorKind.COMMAND)


@dataclass(frozen=True, slots=True)
class Entry:
    """What to append to a tenant's chain. `details` must be JSON values."""

    action: Action
    job_id: JobId | None = None
    actor: Actor = SYSTEM
    clip_sha256: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    def to_text(self) -> str:
        """Actor and details as they are stored and hashed."""
        known = {name: value for name, value in self.details.items() if value is not None}
        return json.dumps(self.actor.to_fields() | known, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One stored record. `number` counts from 1 in each tenant's chain; `details` is JSON text."""

    tenant_id: TenantId
    number: int
    at: float
    action: str
    job_id: str | None
    clip_sha256: str | None
    details: str
    hash: str

    def to_fields(self) -> dict[str, object]:
        """The record as a JSON object, in the form that `filmgate audit export` writes."""
        return {
            "tenant": self.tenant_id,
            "number": self.number,
            "at": self.at,
            "action": self.action,
            "video": self.job_id,
            "clip_sha256": self.clip_sha256,
            "details": self.details,
            "hash": self.hash,
        }

    def to_shown(self) -> dict[str, Any]:
        """The record for people and the API, with the details as an object.

        Someone may have changed the record: details that are no object are text, and a time that is none is
        None, so that a changed record never hides the others.
        """
        texts = {name: _to_valid(value) for name, value in self.to_fields().items() if isinstance(value, str)}
        is_time = isinstance(self.at, int | float) and 0 <= self.at < _YEAR_10000
        at = self.at if is_time else None
        return self.to_fields() | texts | {"at": at, "details": _parse_details(self.details)}

    def chain(self, previous: str) -> str:
        """The hash this record must have after a record with the hash `previous`."""
        return chain_hash(
            previous,
            (self.tenant_id, self.number, self.at, self.action, self.job_id, self.clip_sha256, self.details),
        )


def _parse_details(text: str) -> dict[str, Any] | str:
    try:
        details = json.loads(text)
        # Python reads numbers and characters that JSON cannot have.
        json.dumps(details, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return _to_valid(text)
    return details if isinstance(details, dict) else _to_valid(text)


def _to_valid(text: str) -> str:
    """The text with bytes that are not UTF-8 as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


Fields = tuple[str, int, float, str, str | None, str | None, str]


def chain_hash(previous: str, fields: Fields) -> str:
    """SHA-256 of a record and the hash before it. JSON separates the fields without ambiguity."""
    return hashlib.sha256(json.dumps((previous, *fields), separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a tenant's chain. Records up to `base_number` were deleted by retention.

    The signature covers `signed_number`, `signed_hash` and the base; later records are not signed yet.
    """

    tenant_id: TenantId
    number: int
    hash: str
    base_number: int = 0
    base_hash: str = ORIGIN
    signed_number: int = 0
    signed_hash: str = ORIGIN
    signed_at: float = 0.0
    signature: str = ""

    @property
    def payload(self) -> bytes:
        """The bytes that the signature covers."""
        signed = ["filmgate audit head", self.tenant_id, self.signed_number, self.signed_hash]
        return json.dumps([*signed, self.base_number, self.base_hash, self.signed_at]).encode()
