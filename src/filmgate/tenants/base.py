"""A tenant and the scopes of its API keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from filmgate.jobs import ManagedPolicy, ScreeningAction, Share, TenantId

LOCAL_TENANT = TenantId("local")
KEY_PREFIX = "fg"
# In place of a tenant's digest key, while no job of the tenant may be accepted: it was forgotten.
FORGOTTEN = b""


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
    """A service level objective or a part of it. None: the value of the class of clip, or the default."""

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
