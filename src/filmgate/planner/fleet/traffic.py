"""When work arrives: steady, in business hours, or in bursts."""

from dataclasses import dataclass
from enum import StrEnum

SECONDS_PER_DAY = 86_400


class TrafficShape(StrEnum):
    """How the work of a day is distributed."""

    STEADY = "steady"
    BUSINESS = "business"
    BURSTY = "bursty"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The work of a day. All of it arrives within `busy_hours`, in batches of `batch` on average.

    The busiest hour has `peak` times the average rate of the busy hours.
    """

    per_day: float
    busy_hours: float
    peak: float
    batch: float

    @property
    def peak_rate(self) -> float:
        """Arrivals per second in the busiest hour."""
        return self.per_day / (self.busy_hours * 3600) * self.peak

    @property
    def average_rate(self) -> float:
        """Arrivals per second over the whole day."""
        return self.per_day / SECONDS_PER_DAY


_SHAPES = {
    TrafficShape.STEADY: (24.0, 1.0, 1.0),
    TrafficShape.BUSINESS: (10.0, 1.5, 1.0),
    TrafficShape.BURSTY: (24.0, 1.0, 4.0),
}


def traffic_of(per_day: float, shape: TrafficShape) -> Traffic:
    busy_hours, peak, batch = _SHAPES[shape]
    return Traffic(per_day, busy_hours, peak, batch)
