"""Quotes of the provider for routing, from cached models, renditions and breaker health."""

import time
from collections.abc import Callable
from dataclasses import replace

from filmgate.errors import ProviderCannot, ProviderError
from filmgate.jobs import ManagedPolicy, RouteReason, VideoSpec
from filmgate.providers.adaptation import find_obstacles
from filmgate.providers.base import Provider, Rendition
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import BreakerHealth, Phase
from filmgate.scheduling.routes import Obstacle, ProviderHealth, Quote
from filmgate.telemetry.logs import Log

log = Log("providers")

_MODELS_SECONDS = 60.0
_MAX_CACHED = 4096
_ANY_CHANGE = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
_NOT_LISTED: Obstacle = (RouteReason.PROVIDER_UNHEALTHY, "the provider's models are not known yet")


class ProviderQuotes:
    """The ManagedRoute of one provider. Only `refresh` calls the provider."""

    def __init__(
        self, provider: Provider, breaker: Breaker, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._provider = provider
        self._breaker = breaker
        self._clock = clock
        self._health = BreakerHealth()
        self._listed_at: float | None = None
        self._cache: dict[tuple[VideoSpec, ManagedPolicy], Rendition | Obstacle] = {}

    @property
    def health(self) -> ProviderHealth:
        health = self._health
        return ProviderHealth(health.phase is Phase.CLOSED, health.can_probe, health.phase)

    def refresh(self) -> None:
        self._health = self._breaker.health()
        now = self._clock()
        if self._listed_at is not None and now - self._listed_at < _MODELS_SECONDS:
            return
        try:
            self._provider.models()
        except ProviderError as exc:
            log.warning(
                "the provider's models could not be listed", provider=self._provider.name, code=exc.code
            )
            self._listed_at = None
            return
        self._listed_at = now
        self._cache = {}

    def quote(self, spec: VideoSpec, policy: ManagedPolicy, jobs_ahead: int) -> Quote:
        found = self._fit(spec, policy) if self._listed_at is not None else _NOT_LISTED
        if not isinstance(found, Rendition):
            return Quote(self._provider.name, self.health, obstacle=found)
        # Checked again for this spec: a forbidden rendition must not be quoted from the cache.
        if obstacles := find_obstacles(spec, found, policy):
            return Quote(self._provider.name, self.health, obstacle=(RouteReason.POLICY, obstacles[0]))
        concurrency = found.model.max_concurrent
        rounds = 0 if concurrency is None else jobs_ahead // max(concurrency, 1)
        return Quote(
            self._provider.name,
            self.health,
            seconds=found.expected_seconds * self._health.pace * (1 + rounds),
            rounds_before=rounds,
            usd=found.usd,
            model=found.model.model,
            changes=found.changes,
        )

    def _fit(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition | Obstacle:
        shape, cache = _to_shape(spec), self._cache
        if (known := cache.get((shape, policy))) is not None:
            return known
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        found = self._adapt(shape, policy)
        if isinstance(found, Rendition) or found[0] is not RouteReason.PROVIDER_UNHEALTHY:
            cache[shape, policy] = found
        return found

    def _adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition | Obstacle:
        try:
            return self._provider.adapt(spec, policy)
        except ProviderCannot as exc:
            message = str(exc)
        except ProviderError as exc:
            return RouteReason.PROVIDER_UNHEALTHY, str(exc)
        try:
            self._provider.adapt(spec, _ANY_CHANGE)
        except ProviderError:
            return RouteReason.PROVIDER_CANNOT, message
        return RouteReason.POLICY, message


def _to_shape(spec: VideoSpec) -> VideoSpec:
    """The spec without what only this job has. It is cached, so it must not contain the text of a job."""
    return replace(
        spec,
        prompt="x" * len(spec.prompt),
        negative_prompt="x" if spec.negative_prompt else None,
        seed=0 if spec.seed is not None else None,
        steps=None,
        guidance=None,
        source=replace(spec.source, job_id=None, part=None) if spec.source is not None else None,
    )
