"""Tenants and their API keys in the database. Keys are shown once and stored hashed."""

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc as sa_exc

from filmgate.audit.chain import append
from filmgate.audit.records import SYSTEM, Action, Actor, Entry
from filmgate.database import Database
from filmgate.database.records import read_record
from filmgate.database.schema import accounts, api_keys, jobs, tenants
from filmgate.database.upserts import insert_into
from filmgate.errors import InvalidKey, TenantExists, TenantInUse, TenantNotFound, UsageError
from filmgate.jobs import TENANT_ID_PATTERN, ManagedPolicy, ScreeningAction, Share, TenantId
from filmgate.tenants.base import FORGOTTEN, KEY_PREFIX, IssuedKey, PartialObjective, Scope, Tenant, key_id_of

_FIND_KEY = (
    sa.select(tenants, api_keys.c.digest, api_keys.c.expires_at)
    .join(api_keys, api_keys.c.tenant_id == tenants.c.id)
    .where(api_keys.c.id == sa.bindparam("key_id"))
)


class TenantRegistry:
    """Tenants as rows. An API key is `fg_<id>_<secret>`; only the digest of its secret is stored.

    The secret has 256 random bits, so a plain SHA-256 is sufficient. Every change appends to the audit log of
    the tenant, in the same transaction. All methods raise QueueUnavailable (retryable) when the database
    cannot be reached.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, tenant: Tenant, actor: Actor = SYSTEM) -> IssuedKey:
        """Create the tenant and its first key. Raises TenantExists."""
        if not TENANT_ID_PATTERN.fullmatch(tenant.id):
            raise UsageError("a tenant name has a-z, 0-9 and -, at most 63 characters", option="NAME")
        with self._database.write() as connection:
            tenant = replace(tenant, created_at=self._database.now(connection))
            try:
                connection.execute(sa.insert(tenants).values(_to_row(tenant)))
            except sa_exc.IntegrityError as exc:
                raise TenantExists(f"tenant {tenant.id} or its certificate already exists") from exc
            _update_account(connection, tenant)
            issued = self._issue(connection, tenant)
            details = {"issued_key": key_id_of(issued.secret), "values": _values_of(tenant)}
            self._record(connection, tenant.id, Entry(Action.TENANT_CREATED, None, actor, details=details))
            return issued

    def authenticate(self, secret: str) -> Tenant:
        """The tenant of this API key, compared in constant time. Raises InvalidKey for an unknown key, a
        rotated key and a disabled tenant alike.
        """
        prefix, _, rest = secret.partition("_")
        key_id, _, token = rest.partition("_")
        with self._database.read() as connection:
            row = connection.execute(_FIND_KEY, {"key_id": key_id}).mappings().one_or_none()
            now = self._database.now(connection)
        # An unknown id is compared too: it must take as long as a wrong secret.
        is_right = hmac.compare_digest(row["digest"] if row else _digest(""), _digest(token))
        is_right = is_right and prefix == KEY_PREFIX
        if row is None or not is_right or not row["is_enabled"] or _has_expired(row, now):
            raise InvalidKey("this API key is not valid, or its tenant is disabled")
        return _to_tenant(row)

    def authenticate_certificate(self, subject: str) -> Tenant:
        """The tenant of a verified client certificate, by RFC 4514 subject. Raises InvalidKey."""
        with self._database.read() as connection:
            statement = sa.select(tenants).where(tenants.c.certificate == subject)
            row = connection.execute(statement).mappings().one_or_none()
        if row is None or not row["is_enabled"]:
            raise InvalidKey("this client certificate belongs to no enabled tenant")
        return _to_tenant(row)

    def find(self, tenant_id: TenantId) -> Tenant:
        """Raises TenantNotFound."""
        with self._database.read() as connection:
            return _find(connection, tenant_id)

    def tenants(self) -> Sequence[Tenant]:
        """All tenants, ordered by id."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(tenants).order_by(tenants.c.id)).mappings()
            return [_to_tenant(row) for row in rows]

    def rotate(self, tenant_id: TenantId, overlap_seconds: float = 0.0, actor: Actor = SYSTEM) -> IssuedKey:
        """Create a key; older keys expire after `overlap_seconds` or earlier. Raises TenantNotFound."""
        older = api_keys.c.tenant_id == tenant_id
        with self._database.write() as connection:
            tenant, now = _find_locked(connection, tenant_id), self._database.now(connection)
            ends_at, expires_at = now + overlap_seconds, api_keys.c.expires_at
            is_over = expires_at <= now if overlap_seconds > 0 else sa.true()
            connection.execute(sa.delete(api_keys).where(older, is_over))
            still_valid = sa.or_(expires_at.is_(None), expires_at > ends_at)
            connection.execute(sa.update(api_keys).where(older, still_valid).values(expires_at=ends_at))
            issued = self._issue(connection, tenant)
            details = {"issued_key": key_id_of(issued.secret), "overlap_seconds": overlap_seconds}
            self._record(connection, tenant_id, Entry(Action.KEY_ROTATED, None, actor, details=details))
            return issued

    def update(
        self, tenant_id: TenantId, change: Callable[[Tenant], Tenant], actor: Actor = SYSTEM
    ) -> Tenant:
        """Replace the tenant by `change(tenant)` in one transaction; its id and creation time stay.

        Raises TenantNotFound, and TenantExists for a certificate of another tenant.
        """
        with self._database.write() as connection:
            tenant = _find_locked(connection, tenant_id)
            changed = replace(change(tenant), id=tenant.id, created_at=tenant.created_at)
            statement = sa.update(tenants).where(tenants.c.id == tenant_id).values(_to_row(changed))
            try:
                connection.execute(statement)
            except sa_exc.IntegrityError as exc:
                raise TenantExists("another tenant has this certificate", option="certificate") from exc
            _update_account(connection, changed)
            before = _values_of(tenant)
            values = {name: value for name, value in _values_of(changed).items() if value != before[name]}
            if values:
                entry = Entry(Action.TENANT_CHANGED, None, actor, details={"values": values})
                self._record(connection, tenant_id, entry)
            return changed

    def check_unused(self, tenant_id: TenantId) -> None:
        """Raises TenantNotFound, and TenantInUse unless the tenant is disabled and has no jobs."""
        with self._database.read() as connection:
            _check_unused(connection, _find(connection, tenant_id))

    def delete(self, tenant_id: TenantId, actor: Actor = SYSTEM) -> None:
        """Delete an unused tenant and its API keys. Raises what `check_unused` raises."""
        with self._database.write() as connection:
            _check_unused(connection, _find_locked(connection, tenant_id))
            connection.execute(sa.delete(api_keys).where(api_keys.c.tenant_id == tenant_id))
            connection.execute(sa.delete(tenants).where(tenants.c.id == tenant_id))
            self._record(connection, tenant_id, Entry(Action.TENANT_DELETED, None, actor))

    def disable(self, tenant_id: TenantId, actor: Actor = SYSTEM) -> Tenant:
        """Reject the tenant's requests; accepted jobs still finish. Idempotent."""
        return self.update(tenant_id, lambda tenant: replace(tenant, is_enabled=False), actor)

    def _issue(self, connection: sa.Connection, tenant: Tenant) -> IssuedKey:
        key_id, token = secrets.token_hex(8), secrets.token_hex(32)
        row = {"id": key_id, "tenant_id": tenant.id, "digest": _digest(token)}
        connection.execute(sa.insert(api_keys).values(row | {"created_at": self._database.now(connection)}))
        return IssuedKey(tenant=tenant, secret=f"{KEY_PREFIX}_{key_id}_{token}")

    def _record(self, connection: sa.Connection, tenant_id: TenantId, entry: Entry) -> None:
        append(connection, tenant_id, [entry], self._database.now(connection))


def _has_expired(row: sa.RowMapping, now: float) -> bool:
    return row["expires_at"] is not None and row["expires_at"] <= now


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _find_locked(connection: sa.Connection, tenant_id: TenantId) -> Tenant:
    """The tenant, whose row no other transaction can change or delete until this one ends."""
    return _find(connection, tenant_id, sa.select(tenants).with_for_update())


def _find(
    connection: sa.Connection, tenant_id: TenantId, select: sa.Select[Any] = sa.select(tenants)
) -> Tenant:
    row = connection.execute(select.where(tenants.c.id == tenant_id)).mappings().one_or_none()
    if row is None:
        raise TenantNotFound(f"no tenant is named {tenant_id}; run `filmgate tenant list`")
    return _to_tenant(row)


def _check_unused(connection: sa.Connection, tenant: Tenant) -> None:
    if tenant.is_enabled:
        raise TenantInUse(f"tenant {tenant.id} is enabled; disable it first")
    counted = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.tenant_id == tenant.id)
    if count := connection.execute(counted).scalar_one():
        raise TenantInUse(
            f"tenant {tenant.id} still has {count} videos; delete them, or wait until retention does"
        )


def _update_account(connection: sa.Connection, tenant: Tenant) -> None:
    """Copy what a lease reads to the account. Every lease locks it: workers obey it from this commit on."""
    terms = {
        "weight": tenant.share.weight,
        "max_running": tenant.share.max_running,
        "is_dedicated": tenant.is_dedicated,
    }
    statement = insert_into(connection, accounts).values(terms | {"tenant_id": tenant.id})
    connection.execute(statement.on_conflict_do_update(index_elements=["tenant_id"], set_=terms))
    if tenant.is_enabled:
        own = (accounts.c.tenant_id == tenant.id, accounts.c.digest_key == FORGOTTEN)
        connection.execute(sa.update(accounts).where(*own).values(digest_key=None))


def _to_row(tenant: Tenant) -> dict[str, object]:
    row = {"id": tenant.id, "created_at": tenant.created_at} | _values_of(tenant)
    return {
        name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()
    }


def _values_of(tenant: Tenant) -> dict[str, object]:
    """What can be changed, as JSON values."""
    return {
        "share": asdict(tenant.share),
        "scopes": sorted(tenant.scopes),
        "is_enabled": tenant.is_enabled,
        "certificate": tenant.certificate,
        "screening": dict(tenant.screening),
        "managed": asdict(tenant.managed),
        "is_dedicated": tenant.is_dedicated,
        "objective": asdict(tenant.objective),
    }


def _to_tenant(row: sa.RowMapping) -> Tenant:
    return Tenant(
        id=TenantId(row["id"]),
        share=read_record(Share, json.loads(row["share"])),
        scopes=frozenset(Scope(scope) for scope in json.loads(row["scopes"]) if scope in set(Scope)),
        is_enabled=bool(row["is_enabled"]),
        created_at=row["created_at"],
        certificate=row["certificate"],
        screening=_to_screening(row["screening"]),
        managed=_to_policy(row["managed"]),
        is_dedicated=bool(row["is_dedicated"]),
        objective=read_record(PartialObjective, json.loads(row["objective"])),
    )


def _to_screening(text: str) -> Mapping[str, ScreeningAction]:
    actions = {name: ScreeningAction(action) for name, action in json.loads(text).items()}
    return MappingProxyType(actions)


def _to_policy(text: str) -> ManagedPolicy:
    stored = json.loads(text)
    return read_record(ManagedPolicy, stored | {"regions": tuple(stored.get("regions", ()))})
