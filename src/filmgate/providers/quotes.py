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

Shape = tuple[object, ...]


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
        self._cache: dict[Shape, Rendition | Obstacle] = {}

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
            seconds=_one_clip_seconds(found) * self._health.pace * (1 + rounds),
            rounds_before=rounds,
            usd=found.usd,
            model=found.model.model,
            changes=found.changes,
        )

    def _fit(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition | Obstacle:
        kind = spec.source.kind if spec.source is not None else None
        source = (kind, spec.has_image)
        shape = (spec.model, spec.clip_size, spec.seconds, spec.fps, len(spec.prompt), source, policy)
        cache = self._cache
        if (known := cache.get(shape)) is not None:
            return known
        # Cached for other jobs of the same shape, so it must not contain this job's text.
        anonymous = replace(spec, prompt="x" * len(spec.prompt), negative_prompt=None)
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        found = self._adapt(anonymous, policy)
        if isinstance(found, Rendition) or found[0] is not RouteReason.PROVIDER_UNHEALTHY:
            cache[shape] = found
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


def _one_clip_seconds(rendition: Rendition) -> float:
    """From start to finished clip, in proportion to the length of the clip."""
    model = rendition.model
    length = rendition.spec.seconds / min(model.seconds) if model.seconds else 1.0
    return model.expected_seconds * max(length, 1.0)
