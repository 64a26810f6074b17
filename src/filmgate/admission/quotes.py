"""The estimate of a request that is not a job yet: its cost, its place in the queue and when it is ready."""

from dataclasses import dataclass
from math import isfinite

from filmgate.jobs import Route, ScreeningAction, Ticket, VideoSpec
from filmgate.scheduling.router import work_seconds
from filmgate.scheduling.simulation import Slot


@dataclass(frozen=True, slots=True)
class Estimate:
    """The forecast of a request. Seconds are None while no live worker serves the model."""

    spec: VideoSpec
    route: Route
    screening: ScreeningAction
    gpu_seconds: float
    usd: float | None  # the provider's price, on the managed route
    queue_position: int
    starts_in_seconds: float | None
    ready_in_seconds: float | None
    slo_seconds: float


def to_estimate(ticket: Ticket, slot: Slot, *, is_served: bool) -> Estimate:
    """The estimate of a routed ticket; `slot` is its place on our own GPUs.

    `is_served`: a live worker serves the model. A worker that is only expected promises nothing.
    """
    starts_in = slot.starts_in if is_served and isfinite(slot.starts_in) else None
    ready_in = starts_in + work_seconds(ticket.predicted) if starts_in is not None else None
    is_managed = ticket.route is Route.MANAGED
    if is_managed:
        starts_in, ready_in = 0.0, ticket.routing.expected_seconds
    return Estimate(
        spec=ticket.spec,
        route=ticket.route,
        screening=ticket.screening.action,
        gpu_seconds=0.0 if is_managed else ticket.predicted.gpu_seconds,
        usd=ticket.routing.usd if is_managed else None,
        queue_position=slot.position,
        starts_in_seconds=starts_in,
        ready_in_seconds=ready_in,
        slo_seconds=ticket.slo_seconds,
    )
