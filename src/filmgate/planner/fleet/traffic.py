"""When work arrives: steady, in business hours, in bursts, or at given times."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SECONDS_PER_DAY = 86_400
FIRST_BUSY_HOUR = 8


class TrafficShape(StrEnum):
    """How the work of a day is distributed."""

    STEADY = "steady"
    BUSINESS = "business"
    BURSTY = "bursty"


@dataclass(frozen=True, slots=True)
class Traffic:
    """The work of a day. All of it arrives within `busy_hours`, in batches of `batch` on average.

    The busiest hour has `peak` times the average rate of the busy hours. `given` holds recorded arrivals in
    seconds; the other fields then describe them, and `shape` is None.
    """

    per_day: float
    busy_hours: float
    peak: float
    batch: float
    given: tuple[float, ...] = ()
    shape: TrafficShape | None = None

    @property
    def peak_rate(self) -> float:
        """Arrivals per second in the busiest hour."""
        return self.per_day / (self.busy_hours * 3600) * self.peak

    @property
    def average_rate(self) -> float:
        """Arrivals per second over the whole day."""
        return self.per_day / SECONDS_PER_DAY

    def hour_rate(self, hour: int) -> float:
        """Arrivals per second in one hour of the day."""
        if self.busy_hours >= 24:
            return self.average_rate
        place = hour - FIRST_BUSY_HOUR
        if not 0 <= place < len(BUSINESS_HOURS):
            return 0.0
        return self.per_day / (self.busy_hours * 3600) * BUSINESS_HOURS[place]


BUSINESS_HOURS = (0.5, 0.8, 1.1, 1.3, 1.5, 1.4, 1.2, 1.0, 0.7, 0.5)
"""The rate of each business hour relative to their average."""
_SHAPES = {
    TrafficShape.STEADY: (24.0, 1.0, 1.0),
    TrafficShape.BUSINESS: (float(len(BUSINESS_HOURS)), max(BUSINESS_HOURS), 1.0),
    TrafficShape.BURSTY: (24.0, 1.0, 4.0),
}


def traffic_of(per_day: float, shape: TrafficShape | None = None) -> Traffic:
    """Traffic of this volume and shape, which is steady by default."""
    shape = shape or TrafficShape.STEADY
    busy_hours, peak, batch = _SHAPES[shape]
    return Traffic(per_day, busy_hours, peak, batch, shape=shape)


def shape_name(traffic: Traffic) -> str:
    return traffic.shape.value if traffic.shape else "recorded"


def recorded_traffic(seconds: Sequence[float]) -> Traffic:
    """Traffic from arrival times. The peak is the busiest hour of the record."""
    times = sorted(seconds)
    times = [time - times[0] for time in times]
    span = max(times[-1], 3600.0)
    per_day = len(times) / span * SECONDS_PER_DAY
    busiest = max(bisect_left(times, time + 3600) - place for place, time in enumerate(times))
    return Traffic(per_day, 24.0, busiest / (per_day / 24), 1.0, tuple(times))
