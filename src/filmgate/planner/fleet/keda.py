"""How KEDA and the HorizontalPodAutoscaler choose the number of workers, as the chart configures them.

KEDA switches between zero and one, and removes the last worker `scale_in_seconds` after the last activity.
Above one, Kubernetes computes ceil(metric / target) for each trigger and takes the largest, ignores changes
within 10 %, and follows a change only when it has lasted for the stabilization window: the smallest result of
the last `scale_out_seconds` when growing, the largest of the last `scale_in_seconds` when shrinking.
Sources: keda.sh/docs/2.20/concepts/scaling-deployments, kubernetes.io/docs/tasks/run-application/
horizontal-pod-autoscale (algorithm details, configurable scaling behavior).
"""

import math
from collections import deque
from dataclasses import dataclass

SYNC_SECONDS = 15.0  # of the HorizontalPodAutoscaler
_TOLERANCE = 0.1
# Kubernetes' default limits of a scale-out in 15 s, and the chart's limit of a scale-in in a minute.
_OUT_PERIOD, _OUT_FACTOR, _OUT_PODS = 15.0, 2, 4
_IN_PERIOD, _IN_PODS = 60.0, 1
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class OfficeHours:
    """KEDA's cron trigger: at least `replicas` in these hours on weekdays. Day 0 is a Monday."""

    start_hour: float
    end_hour: float
    replicas: int

    def replicas_at(self, now: float) -> int:
        day, hour = int(now // _DAY) % 7, now % _DAY / 3600
        return self.replicas if day < 5 and self.start_hour <= hour < self.end_hour else 0


@dataclass(frozen=True, slots=True)
class KedaSettings:
    """The values of the chart that decide scaling. The defaults are the chart's."""

    min_replicas: int = 2
    max_replicas: int = 8
    backlog_seconds_per_worker: float = 60.0
    polling_seconds: float = 30.0
    scale_out_seconds: float = 60.0
    scale_in_seconds: float = 300.0
    schedule: tuple[OfficeHours, ...] = ()


class Autoscaler:
    """The decisions of one ScaledObject. Times are seconds and never go back."""

    def __init__(self, settings: KedaSettings) -> None:
        self._settings = settings
        self._active_at = -math.inf
        self._polled_at = -math.inf
        self._wanted: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def decide(self, now: float, backlog_seconds: float, running: int, replicas: int) -> int:
        """The number of workers from now on. Call it every SYNC_SECONDS."""
        settings = self._settings
        scheduled = max((hours.replicas_at(now) for hours in settings.schedule), default=0)
        if backlog_seconds > 0 or running > 0 or scheduled > 0:
            self._active_at = now
        if replicas == 0:
            return self._activate(now)
        if settings.min_replicas == 0 and now - self._active_at >= settings.scale_in_seconds:
            self._wanted.clear()
            return 0
        by_trigger = (
            _by_ratio(backlog_seconds, settings.backlog_seconds_per_worker, replicas),
            _by_ratio(running, 1.0, replicas),
            _by_ratio(scheduled, 1.0, replicas),
        )
        wanted = min(max(*by_trigger, settings.min_replicas, 1), settings.max_replicas)
        decided = self._limit(now, replicas, self._stabilize(now, replicas, wanted))
        if decided != replicas:
            self._changes.append((now, decided - replicas))
        return decided

    def _activate(self, now: float) -> int:
        """From zero to one, or to the minimum, at KEDA's next poll."""
        if now - self._polled_at < self._settings.polling_seconds:
            return 0
        self._polled_at = now
        return max(1, self._settings.min_replicas) if self._active_at == now else 0

    def _stabilize(self, now: float, replicas: int, wanted: int) -> int:
        self._wanted.append((now, wanted))
        longest = max(self._settings.scale_out_seconds, self._settings.scale_in_seconds)
        while self._wanted[0][0] < now - longest:
            self._wanted.popleft()
        grow = min(count for at, count in self._wanted if at >= now - self._settings.scale_out_seconds)
        shrink = max(count for at, count in self._wanted if at >= now - self._settings.scale_in_seconds)
        return grow if replicas < grow else min(replicas, shrink)

    def _limit(self, now: float, replicas: int, wanted: int) -> int:
        """The wanted number, within the limits of a change in one period."""
        while self._changes and self._changes[0][0] <= now - _IN_PERIOD:
            self._changes.popleft()
        if wanted > replicas:
            recent = sum(delta for at, delta in self._changes if delta > 0 and at > now - _OUT_PERIOD)
            before = replicas - recent
            return min(wanted, max(before * _OUT_FACTOR, before + _OUT_PODS))
        removed = -sum(delta for _, delta in self._changes if delta < 0)
        return max(wanted, replicas - max(0, _IN_PODS - removed))


def _by_ratio(metric: float, target: float, replicas: int) -> int:
    """Kubernetes' formula for a metric of type AverageValue."""
    if abs(metric / (target * replicas) - 1) <= _TOLERANCE:
        return replicas
    return math.ceil(metric / target - 1e-9)
