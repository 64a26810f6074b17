"""The TenantRegistry port: tenants and their API keys. Keys are shown once and stored hashed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from filmgate.jobs import ManagedPolicy, ScreeningAction, Share, TenantId

LOCAL_TENANT = TenantId("local")


KEY_PREFIX = "fg"


def key_id_of(secret: str) -> str:
    """The public id in an API key, `fg_<id>_<secret>`."""
    return secret.removeprefix(f"{KEY_PREFIX}_").partition("_")[0]


class Scope(StrEnum):
    """A permission of an API key."""

    GENERATE = "generate"
    READ = "read"
    ADMIN = "admin"


ALL_SCOPES = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class PartialObjective:
    """A service level objective, or a part of one: None is left to the class of clip and the default."""

    seconds: float | None = None
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer: its quotas, scopes and encryption key. `screening` overrides actions by category."""

    id: TenantId
    share: Share = field(default_factory=Share)
    scopes: frozenset[Scope] = frozenset({Scope.GENERATE, Scope.READ})
    is_enabled: bool = True
    created_at: float = 0.0
    certificate: str | None = None
    screening: Mapping[str, ScreeningAction] = field(default_factory=lambda: MappingProxyType({}))
    managed: ManagedPolicy = field(default_factory=ManagedPolicy)
    is_dedicated: bool = False  # only workers started with --tenant render its jobs on our GPUs
    objective: PartialObjective = PartialObjective()

    def may(self, scope: Scope) -> bool:
        return self.is_enabled and (scope in self.scopes or Scope.ADMIN in self.scopes)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new API key in plain text: shown once, never stored."""

    tenant: Tenant
    secret: str = field(repr=False)


class TenantRegistry(Protocol):
    """Tenants and their API keys. Raises QueueUnavailable (retryable) when the database cannot be reached."""

    def add(self, tenant: Tenant) -> IssuedKey:
        """Create the tenant and its first key. Raises TenantExists."""
        ...

    def authenticate(self, secret: str) -> Tenant:
        """The tenant of this API key, compared in constant time. Raises InvalidKey for an unknown key, a
        rotated key and a disabled tenant alike.
        """
        ...

    def authenticate_certificate(self, subject: str) -> Tenant:
        """The tenant of a verified client certificate, by RFC 4514 subject. Raises InvalidKey."""
        ...

    def find(self, tenant_id: TenantId) -> Tenant:
        """Raises TenantNotFound."""
        ...

    def tenants(self) -> Sequence[Tenant]:
        """All tenants, ordered by id."""
        ...

    def rotate(self, tenant_id: TenantId, overlap_seconds: float = 0.0) -> IssuedKey:
        """Create a key; older ones end after `overlap_seconds` or earlier. Raises TenantNotFound."""
        ...

    def update(self, tenant_id: TenantId, change: Callable[[Tenant], Tenant]) -> Tenant:
        """Replace the tenant by `change(tenant)` in one transaction; its id and creation time stay.

        Raises TenantNotFound, and TenantExists for a certificate of another tenant.
        """
        ...

    def check_unused(self, tenant_id: TenantId) -> None:
        """Raises TenantNotFound, and TenantInUse unless the tenant is disabled and has no jobs."""
        ...

    def delete(self, tenant_id: TenantId) -> None:
        """Delete an unused tenant and its API keys. Raises what `check_unused` raises."""
        ...

    def disable(self, tenant_id: TenantId) -> Tenant:
        """Reject the tenant's requests; accepted jobs still finish. Idempotent."""
        ...
