"""Digests of request bodies and prompts that confirm a guess to nobody without the tenant's key.

Each tenant has a random HMAC key. It is stored with the account, encrypted with the tenant's key, so that
every process computes the same digest and a copy of the database is not enough to compute any.
"""

import hashlib
import hmac
import secrets
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from filmgate.database import Database
from filmgate.database.schema import accounts
from filmgate.errors import KeyRefused
from filmgate.jobs import Idempotency, TenantId
from filmgate.store.keys.sealing import Sealer
from filmgate.telemetry.logs import Log

log = Log("queue")

KEY_CONTEXT = "key of body digests"
_FIND = sa.select(accounts.c.digest_key).where(accounts.c.tenant_id == sa.bindparam("own"))


class BodyDigests:
    """The HMAC keys of a process. Calls the keyring once per tenant, never in a transaction."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer
        self._keys: dict[TenantId, bytes] = {}

    def protect(self, tenant_id: TenantId, idempotency: Idempotency) -> Idempotency:
        """The same, with the digest as it is stored. Raises what the keyring raises."""
        return replace(idempotency, body_digest=self._digest(tenant_id, idempotency.body_digest.encode()))

    def digest_prompt(self, tenant_id: TenantId, prompt: str) -> str:
        """The digest of a prompt, for both logs: equal prompts of one tenant have equal digests."""
        return self._digest(tenant_id, b"prompt\0" + prompt.encode())

    def _digest(self, tenant_id: TenantId, data: bytes) -> str:
        key = self._keys.get(tenant_id)
        if key is None:
            key = self._keys[tenant_id] = self._load(tenant_id)
        return hmac.new(key, data, hashlib.sha256).hexdigest()

    def _load(self, tenant_id: TenantId) -> bytes:
        sealed = self._find(tenant_id)
        if sealed is None:
            sealed = self._create(tenant_id, None)
        try:
            return self._sealer.open(tenant_id, sealed, KEY_CONTEXT)
        except KeyRefused as exc:
            # The tenant's key was replaced. Requests before that are not recognised any more.
            log.warning("the key of body digests is replaced", code=exc.code, tenant_id=tenant_id)
            return self._sealer.open(tenant_id, self._create(tenant_id, sealed), KEY_CONTEXT)

    def _find(self, tenant_id: TenantId) -> bytes | None:
        with self._database.read() as connection:
            found: bytes | None = connection.execute(_FIND, {"own": tenant_id}).scalar_one_or_none()
        return found

    def _create(self, tenant_id: TenantId, replaced: bytes | None) -> bytes:
        """Store a new key unless another process was first. Returns the stored one, encrypted."""
        sealed = self._sealer.seal(tenant_id, secrets.token_bytes(32), KEY_CONTEXT)
        insert = (sqlite.insert if self._database.is_sqlite else postgresql.insert)(accounts)
        insert = insert.values(tenant_id=tenant_id, weight=1.0, digest_key=sealed)
        old = accounts.c.digest_key
        upsert = insert.on_conflict_do_update(
            index_elements=["tenant_id"],
            set_={"digest_key": insert.excluded.digest_key},
            where=old.is_(None) if replaced is None else old == replaced,
        )
        with self._database.write() as connection:
            connection.execute(upsert)
            stored: bytes = connection.execute(_FIND, {"own": tenant_id}).scalar_one()
        return stored
