"""Accepts a request as a job, once: a request with the key or the body of an earlier one is the same job.

Bodies and prompts are stored as digests that do not confirm a guess without the tenant's key. Each tenant
has a random HMAC key. It is stored with the account, encrypted with the tenant's key, so that every process
computes the same digest and a copy of the database is not enough to compute any.
"""

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa

from filmgate.audit.chain import append
from filmgate.audit.records import Action, Actor, Entry
from filmgate.database import Database
from filmgate.database.group_commit import GroupCommit
from filmgate.database.schema import accounts, jobs
from filmgate.database.upserts import insert_into
from filmgate.errors import IdempotencyConflict, InvalidKey, KeyRefused
from filmgate.jobs import Idempotency, TenantId, Ticket
from filmgate.scheduling import fair_share
from filmgate.scheduling.rows import Row, to_row
from filmgate.store.keys.data_keys import Sealer
from filmgate.telemetry.logs import Log
from filmgate.tenants.base import FORGOTTEN

log = Log("queue")

KEY_CONTEXT = "key of body digests"
# Another process replaces the key when the tenant's encryption key was replaced.
_KEY_SECONDS = 5.0
_FIND = sa.select(accounts.c.digest_key).where(accounts.c.tenant_id == sa.bindparam("own"))
_INSERT = sa.insert(jobs).returning(jobs)
_OWN = jobs.c.tenant_id == sa.bindparam("own")
_BY_KEY = sa.select(jobs).where(_OWN, jobs.c.idempotency_key == sa.bindparam("key"))
_BY_BODY = (
    sa.select(jobs)
    .where(_OWN, jobs.c.body_digest == sa.bindparam("digest"), jobs.c.idempotency_key.is_(None))
    .where(jobs.c.created_at > sa.bindparam("since"))
    .order_by(jobs.c.seq.desc())
    .limit(1)
)
_FOUND_ORIGINAL = sa.update(jobs).where(jobs.c.seq == sa.bindparam("the_seq")).values(awaits_original=False)


class BodyDigests:
    """The HMAC keys of a process. Never calls the keyring in a transaction."""

    def __init__(
        self, database: Database, sealer: Sealer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock
        self._keys: dict[TenantId, tuple[bytes, float]] = {}

    def protect(self, tenant_id: TenantId, idempotency: Idempotency) -> Idempotency:
        """The same, with the digest as it is stored. Raises what the keyring raises."""
        return replace(idempotency, body_digest=self._digest(tenant_id, idempotency.body_digest.encode()))

    def digest_prompt(self, tenant_id: TenantId, prompt: str) -> str:
        """The digest of a prompt, for both logs: equal prompts of one tenant have equal digests."""
        return self._digest(tenant_id, b"prompt\0" + prompt.encode())

    def _digest(self, tenant_id: TenantId, data: bytes) -> str:
        key, expires_at = self._keys.get(tenant_id, (b"", 0.0))
        if self._clock() >= expires_at:
            key = self._load(tenant_id)
            self._keys[tenant_id] = (key, self._clock() + _KEY_SECONDS)
        return hmac.new(key, data, hashlib.sha256).hexdigest()

    def _load(self, tenant_id: TenantId) -> bytes:
        sealed = self._find(tenant_id)
        if sealed is None:
            sealed = self._create(tenant_id, None)
        try:
            return self._open(tenant_id, sealed)
        except KeyRefused as exc:
            # The tenant's key was replaced. Requests before that are not recognised any more.
            log.warning("the key of body digests is replaced", code=exc.code, tenant_id=tenant_id)
            return self._open(tenant_id, self._create(tenant_id, sealed))

    def _open(self, tenant_id: TenantId, sealed: bytes) -> bytes:
        _require_not_forgotten(sealed)
        return self._sealer.open(tenant_id, sealed, KEY_CONTEXT)

    def _find(self, tenant_id: TenantId) -> bytes | None:
        with self._database.read() as connection:
            found: bytes | None = connection.execute(_FIND, {"own": tenant_id}).scalar_one_or_none()
        return found

    def _create(self, tenant_id: TenantId, replaced: bytes | None) -> bytes:
        """Store a new key unless another process was first. Returns the stored one, encrypted."""
        sealed = self._sealer.seal(tenant_id, secrets.token_bytes(32), KEY_CONTEXT)
        old = accounts.c.digest_key
        with self._database.write() as connection:
            insert = insert_into(connection, accounts)
            upsert = insert.values(tenant_id=tenant_id, weight=1.0, digest_key=sealed).on_conflict_do_update(
                index_elements=["tenant_id"],
                set_={"digest_key": sealed},
                where=old.is_(None) if replaced is None else old == replaced,
            )
            connection.execute(upsert)
            stored: bytes = connection.execute(_FIND, {"own": tenant_id}).scalar_one()
        return stored


class Acceptance:
    """Writes new jobs, and finds those that exist already."""

    def __init__(self, database: Database, sealer: Sealer, retry_window_seconds: float) -> None:
        self._database = database
        self._sealer = sealer
        self._window_seconds = retry_window_seconds
        self._group = GroupCommit(database)
        self.digests = BodyDigests(database, sealer)

    def accept(self, ticket: Ticket, actor: Actor) -> Row:
        """The row of the new job, durable, or of the job that this request created before.

        Raises IdempotencyConflict, QuotaExceeded, BacklogGrown, and InvalidKey for a forgotten tenant.
        """
        ticket = replace(ticket, idempotency=self.digests.protect(ticket.tenant_id, ticket.idempotency))
        prompt_hmac = self.digests.digest_prompt(ticket.tenant_id, ticket.spec.prompt)
        draft = to_row(ticket, self._sealer, prompt_hmac)
        entry = _created_entry(ticket, draft, actor)
        return self._group.run(lambda connection: self._write(connection, ticket, draft, entry))

    def _write(self, connection: sa.Connection, ticket: Ticket, draft: Row, entry: Entry) -> Row:
        account = fair_share.open_account(connection, ticket.tenant_id, ticket.share)
        _require_not_forgotten(account["digest_key"])
        now = self._database.now(connection)
        since = now - self._window_seconds
        if (row := _find_duplicate(connection, ticket.tenant_id, ticket.idempotency, since)) is not None:
            return row
        fair_share.admit(connection, account, ticket, draft, now)
        times = {"created_at": now, "deadline_at": now + ticket.slo_seconds}
        row = connection.execute(_INSERT, {**draft, **times}).mappings().one()
        append(connection, ticket.tenant_id, [entry], now)
        return row

    def find(self, tenant_id: TenantId, idempotency: Idempotency) -> Row | None:
        """The row of the job that this request created before. Raises IdempotencyConflict."""
        protected = self.digests.protect(tenant_id, idempotency)
        with self._database.read() as connection:
            since = self._database.now(connection) - self._window_seconds
            return _find_duplicate(connection, tenant_id, protected, since)


def _require_not_forgotten(digest_key: bytes) -> None:
    """Raises InvalidKey if the tenant was forgotten after the API key of the request was checked."""
    if digest_key == FORGOTTEN:
        raise InvalidKey("the tenant was deleted or disabled; nothing was accepted")


def _find_duplicate(
    connection: sa.Connection, tenant_id: TenantId, idempotency: Idempotency, since: float
) -> Row | None:
    """The row of the job this request already created, None for a new request. Raises IdempotencyConflict."""
    if idempotency.key is not None:
        return _find_by_key(connection, tenant_id, idempotency)
    same = {"own": tenant_id, "digest": idempotency.body_digest, "since": since}
    if idempotency.is_retry:
        return connection.execute(_BY_BODY, same).mappings().one_or_none()
    # A request that arrives after its own retry is that job too, but only once: the next request with the
    # same body creates a second clip.
    waiting = _BY_BODY.where(jobs.c.awaits_original)
    row = connection.execute(waiting, same).mappings().one_or_none()
    if row is not None:
        connection.execute(_FOUND_ORIGINAL, {"the_seq": row["seq"]})
    return row


def _find_by_key(connection: sa.Connection, tenant_id: TenantId, idempotency: Idempotency) -> Row | None:
    keyed = {"own": tenant_id, "key": idempotency.key}
    row = connection.execute(_BY_KEY, keyed).mappings().one_or_none()
    if row is not None and row["body_digest"] != idempotency.body_digest:
        raise IdempotencyConflict(
            "this Idempotency-Key was used with a different body", option="Idempotency-Key"
        )
    return row


def _created_entry(ticket: Ticket, row: Row, actor: Actor) -> Entry:
    """A request became a job."""
    screening = ticket.screening
    details = {
        "prompt_hmac": row["prompt_hmac"],
        "screening": screening.action.value,
        "rules": list(screening.rules) or None,
        "model": ticket.spec.model,
        "spec": json.loads(row["spec"]),
        "route": ticket.route.value,
        "route_reason": ticket.routing.reason.value,
        "trace": ticket.trace_id,
    }
    return Entry(Action.CREATED, ticket.job_id, actor, details=details)
