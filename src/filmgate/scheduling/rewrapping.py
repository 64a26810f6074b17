"""Wraps everything a tenant has encrypted with its current key, so that older keys can be deleted."""

from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import accounts, jobs
from filmgate.errors import KeyRefused
from filmgate.jobs import TenantId
from filmgate.store.base import ObjectStore
from filmgate.store.keys.data_keys import Rewrap, rewrap_sealed
from filmgate.store.keys.files import FileKeyring
from filmgate.store.local.store import LocalStore

_BATCH = 200
# An object whose writing began before the rotation is published later, with a data key of the key before.
PRUNE_SECONDS = 2 * 3600.0


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """How many prompts and objects were wrapped again, and how many old keys were deleted."""

    prompts: int
    objects: int
    pruned_keys: int = 0


class Rewrapping:
    """Idempotent: run it again after an interruption. Data keys and plain bytes do not change."""

    def __init__(self, database: Database, store: ObjectStore, keyring: FileKeyring) -> None:
        self._database = database
        self._store = store
        self._keyring = keyring

    def run(self, tenant_id: TenantId) -> Rewrapped:
        """Wrap all data keys of the tenant with its current key; delete older keys that are not used."""
        rewrap = partial(self._keyring.rewrap, tenant_id)
        prompts = self._rewrap_prompts(tenant_id, rewrap)
        self._rewrap_digest_key(tenant_id, rewrap)
        # S3 encrypts objects with KMS: only local objects have data keys of this keyring.
        objects = self._store.rewrap(tenant_id, rewrap) if isinstance(self._store, LocalStore) else 0
        is_old = self._keyring.rotated_seconds_ago(tenant_id) >= PRUNE_SECONDS
        return Rewrapped(prompts, objects, self._keyring.prune(tenant_id) if is_old else 0)

    def _rewrap_prompts(self, tenant_id: TenantId, rewrap: Rewrap) -> int:
        changed, last = 0, 0
        while rows := self._read_prompts(tenant_id, last):
            last = rows[-1].seq
            new = {row.seq: _rewrapped(row.sealed_prompt, rewrap) for row in rows}
            with self._database.write() as connection:
                for seq, sealed in new.items():
                    if sealed is not None:
                        own = sa.update(jobs).where(jobs.c.seq == seq)
                        changed += connection.execute(own.values(sealed_prompt=sealed)).rowcount
        return changed

    def _read_prompts(self, tenant_id: TenantId, last: int) -> list[sa.Row[tuple[int, bytes]]]:
        own = sa.select(jobs.c.seq, jobs.c.sealed_prompt).where(jobs.c.tenant_id == tenant_id)
        with self._database.read() as connection:
            page = own.where(jobs.c.seq > last).order_by(jobs.c.seq).limit(_BATCH)
            return list(connection.execute(page))

    def _rewrap_digest_key(self, tenant_id: TenantId, rewrap: Rewrap) -> None:
        own = accounts.c.tenant_id == tenant_id
        with self._database.read() as connection:
            old = connection.execute(sa.select(accounts.c.digest_key).where(own)).scalar_one_or_none()
        if old is None or (new := _rewrapped(old, rewrap)) is None:
            return
        with self._database.write() as connection:
            is_same = accounts.c.digest_key == old
            connection.execute(sa.update(accounts).where(own, is_same).values(digest_key=new))


def _rewrapped(sealed: bytes, rewrap: Rewrap) -> bytes | None:
    try:
        return rewrap_sealed(sealed, rewrap)
    except KeyRefused:
        return None  # encrypted with a key that was destroyed: it stays unreadable
