"""What waits on a route, as routing sees it, and the moves it makes."""

from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.jobs import JobId, Route, RouteReason, Routing, StageSeconds, TenantId, VideoSpec


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job as routing needs it, without its prompt; `reason` is why it is on its route."""

    job_id: JobId
    tenant_id: TenantId
    spec: VideoSpec
    predicted: StageSeconds
    created_at: float
    deadline_at: float
    reason: RouteReason


@dataclass(frozen=True, slots=True)
class Turn:
    """How much a tenant has had: the least virtual time is served next, and weight slows its growth."""

    weight: float
    virtual_time: float


@dataclass(frozen=True, slots=True)
class Line:
    """The jobs waiting on one route by deadline, and what decides whose turn it is."""

    now: float
    jobs: tuple[Waiting, ...]
    turns: Mapping[TenantId, Turn]


@dataclass(frozen=True, slots=True)
class Move:
    """A waiting job's new route, or a new reason to stay on its own."""

    tenant_id: TenantId
    job_id: JobId
    route: Route
    routing: Routing
