"""Who renders a job, and why."""

from dataclasses import dataclass
from enum import StrEnum


class Route(StrEnum):
    """Who renders the job: local GPUs or a managed provider. Workers lease by route."""

    GPU = "gpu"
    MANAGED = "managed"


class RouteReason(StrEnum):
    """Why a job is on its route. A closed set: it labels metrics."""

    DEFAULT = "default"  # the local GPUs meet the deadline
    DEADLINE = "deadline"  # the local GPUs would miss it, the provider meets it
    AGE = "age"  # it has waited longer than the limit
    PROVIDER_SLOWER = "provider_slower"  # late on local GPUs, later at the provider
    TOO_LATE = "too_late"  # late on both; not worth paying for until the job is old
    PROVIDER_UNHEALTHY = "provider_unhealthy"  # throttled, failing, or without a worker
    PROVIDER_CANNOT = "provider_cannot"  # the provider has no model that renders the spec
    POLICY = "policy"  # the tenant does not allow the provider, its region, price or changes
    RETURNED = "returned"  # the provider failed or rejected it

    @classmethod
    def _missing_(cls, _value: object) -> "RouteReason":
        """A newer version may store reasons that this one does not know."""
        return cls.DEFAULT


@dataclass(frozen=True, slots=True)
class Routing:
    """Why a job is on its route. `changes` lists what the provider renders differently."""

    reason: RouteReason = RouteReason.DEFAULT
    detail: str = ""
    provider: str | None = None
    provider_model: str | None = None
    changes: tuple[str, ...] = ()
    usd: float | None = None  # the provider's price
    expected_seconds: float | None = None  # from start to finished clip at the provider
    decided_at: float | None = None


DEFAULT_ROUTING = Routing()


@dataclass(frozen=True, slots=True)
class ManagedPolicy:
    """What a tenant allows a managed provider to do with its jobs; nothing by default."""

    is_allowed: bool = False
    regions: tuple[str, ...] = ()  # empty: any
    max_usd_per_clip: float | None = None
    may_resize: bool = False
    may_change_length: bool = False
