"""Chooses the route of a new request from the current forecast and the provider's last known state.

Request threads never wait for a provider: the spill thread refreshes what they read.
"""

import threading

from filmgate.jobs import ManagedPolicy, Route, RouteReason, Ticket, VideoSpec
from filmgate.scheduling.forecast import Forecast
from filmgate.scheduling.routes import (
    ON_GPU,
    Case,
    Choice,
    ManagedRoute,
    Quote,
    choose,
    reason_to_leave,
)
from filmgate.scheduling.simulation import Slot
from filmgate.settings import RoutingSettings

NO_MANAGED_WORKER = (RouteReason.PROVIDER_UNHEALTHY, "no live managed worker serves the model")


class Router:
    """Routes requests between local GPUs and a provider."""

    def __init__(self, managed: ManagedRoute, settings: RoutingSettings) -> None:
        self.managed = managed
        self.settings = settings
        self._lock = threading.Lock()
        self._seen: Forecast | None = None
        self._sent = 0

    def choose(self, ticket: Ticket, policy: ManagedPolicy, slot: Slot, forecast: Forecast) -> Choice:
        """The route of a request that arrives now and has this slot on local GPUs."""
        now = forecast.snapshot.now
        case = Case(
            now=now,
            deadline_at=now + ticket.slo_seconds,
            gpu_wait_seconds=slot.starts_in,
            gpu_work_seconds=ticket.predicted.work_seconds,
            policy=policy,
        )
        if reason_to_leave(case, self.settings) is None:
            return ON_GPU
        with self._lock:
            # Requests that left since the forecast was made are not in its snapshot yet.
            if forecast is not self._seen:
                self._seen, self._sent = forecast, 0
            quote = self.quote(ticket.spec, policy, forecast, self._sent)
            choice = choose(case, quote, self.settings)
            self._sent += choice.route is Route.MANAGED
        return choice

    def quote(self, spec: VideoSpec, policy: ManagedPolicy, forecast: Forecast, sent: int) -> Quote:
        """The provider's quote, given the jobs it has already and `sent` more."""
        if not has_managed_worker(forecast, spec.model):
            return Quote("provider", obstacle=NO_MANAGED_WORKER)
        return self.managed.quote(spec, policy, forecast.count_jobs(Route.MANAGED) + sent)


def has_managed_worker(forecast: Forecast, model: str | None = None) -> bool:
    """Whether a process takes jobs of this model (or of any) to the provider, or may be starting."""
    return forecast.expects_workers or any(
        worker.route is Route.MANAGED and model in {None, *worker.models}
        for worker in forecast.snapshot.workers
    )
