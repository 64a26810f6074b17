"""Counts calls that a service refused because there were too many, in the whole process."""

from filmgate.telemetry.metrics import THROTTLES

# One for the process: clients are opened in many places and retry by themselves. Every registry exports it.
THROTTLE_COUNTER = THROTTLES.live_counter(None)


def count_throttle(service: str) -> None:
    """Count one refused attempt. `service` is from a closed set: it becomes a label."""
    THROTTLE_COUNTER.labels(service).inc()
