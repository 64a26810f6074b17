"""When work arrives: steady, in business hours, or in bursts."""

from dataclasses import dataclass
from enum import StrEnum

DAY_SECONDS = 86_400


class Shape(StrEnum):
    """How a day's work is spread."""

    STEADY = "steady"
    BUSINESS = "business"
    BURSTY = "bursty"


@dataclass(frozen=True, slots=True)
class Traffic:
    """A day's work; `busy_hours` carry all of it, the busiest of them `peak` times the average."""

    per_day: float
    busy_hours: float
    peak: float
    bunch: float

    @property
    def peak_rate(self) -> float:
        """Arrivals a second in the busiest hour."""
        return self.per_day / (self.busy_hours * 3600) * self.peak

    @property
    def average_rate(self) -> float:
        return self.per_day / DAY_SECONDS


SHAPES = {
    Shape.STEADY: (24.0, 1.0, 1.0),
    Shape.BUSINESS: (10.0, 1.5, 1.0),
    Shape.BURSTY: (24.0, 1.0, 4.0),
}


def traffic_of(per_day: float, shape: Shape) -> Traffic:
    busy_hours, peak, bunch = SHAPES[shape]
    return Traffic(per_day, busy_hours, peak, bunch)
