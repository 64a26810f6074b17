"""What the choice is made from, gathered: the provider's offers and health, our workers, jobs on their way.

Requests read what the spill's thread has gathered; no request ever waits for a provider.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from filmgate.errors import ProviderCannot, ProviderError
from filmgate.jobs import ManagedPolicy, Route, RouteReason, StageSeconds, VideoSpec
from filmgate.providers.base import Provider, Rendition
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Health
from filmgate.scheduling.base import Backlog, Presence
from filmgate.scheduling.routes import AT_HOME, Case, Choice, Home, Option, choose, find_wish
from filmgate.settings import RoutingSettings
from filmgate.telemetry.logs import Log

log = Log("routing")

_OFFERS_SECONDS = 60.0
_MOST_SHAPES = 4096
_ANYTHING = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)

Obstacle = tuple[RouteReason, str]
_UNASKED: Obstacle = (RouteReason.PROVIDER_UNHEALTHY, "the provider has not said what it offers")
_UNMANNED: Obstacle = (RouteReason.PROVIDER_UNHEALTHY, "no worker of the managed route is alive")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at the gate; `wait_seconds` is the wait if every GPU the settings name were there."""

    policy: ManagedPolicy
    spec: VideoSpec
    predicted: StageSeconds
    slo_seconds: float
    wait_seconds: float


class Router:
    """Chooses for arrivals, and gathers what choosing needs."""

    def __init__(
        self,
        provider: Provider,
        breaker: Breaker,
        settings: RoutingSettings,
        gpus: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._provider = provider
        self._breaker = breaker
        self._gpus = gpus
        self._clock = clock
        self._started_at = clock()
        self._health = Health()
        self._is_manned = True
        self._offers_at: float | None = None
        self._shapes: dict[tuple[object, ...], Rendition | Obstacle] = {}
        self._lock = threading.Lock()
        self._seen: Backlog | None = None
        self._sent = 0

    @property
    def health(self) -> Health:
        return self._health

    @property
    def is_manned(self) -> bool:
        """Somebody is there to take jobs to the provider."""
        return self._is_manned

    def refresh(self, backlog: Backlog) -> None:
        """Ask how the provider stands, and now and then what it offers. Blocks: not for requests."""
        self._health = self._breaker.health()
        self._is_manned = self._is_new or bool(self._list_alive(backlog, Route.MANAGED))
        now = self._clock()
        if self._offers_at is not None and now - self._offers_at < _OFFERS_SECONDS:
            return
        try:
            self._provider.offers()
        except ProviderError as exc:
            log.warning(
                "the provider did not say what it offers", provider=self._provider.name, code=exc.code
            )
            self._offers_at = None
            return
        self._offers_at = now
        self._shapes = {}

    def choose(self, arrival: Arrival, backlog: Backlog) -> Choice:
        """The route of a request that comes now."""
        gpus = self.count_gpus(backlog, arrival.spec.model)
        wait = arrival.wait_seconds * self._gpus / gpus if gpus else float("inf")
        now = time.time()
        case = Case(
            now=now,
            deadline_at=now + arrival.slo_seconds,
            home=Home(wait, arrival.predicted.gpu_seconds + arrival.predicted.upload),
            policy=arrival.policy,
            spec=arrival.spec,
        )
        if find_wish(case, self.settings) is None:
            return AT_HOME
        with self._lock:
            # The backlog is a moment old: what went since it was read is not in it yet.
            if backlog is not self._seen:
                self._seen, self._sent = backlog, 0
            option = self.survey(arrival.spec, arrival.policy, count_managed(backlog) + self._sent)
            choice = choose(case, (option,), self.settings)
            self._sent += choice.route is Route.MANAGED
        return choice

    def count_gpus(self, backlog: Backlog, model: str) -> int:
        """GPU workers that are alive; 0 when none of them serves the model.

        A server that has just started has heard of nobody yet: it believes the settings for a while.
        """
        alive = self._list_alive(backlog, Route.GPU)
        if any(model in worker.models for worker in alive):
            return len(alive)
        return self._gpus if self._is_new else 0

    @property
    def _is_new(self) -> bool:
        return self._clock() - self._started_at < self.settings.silence_seconds

    def _list_alive(self, backlog: Backlog, route: Route) -> list[Presence]:
        silence = self.settings.silence_seconds
        return [
            worker for worker in backlog.workers if worker.route is route and worker.silent_seconds < silence
        ]

    def survey(self, spec: VideoSpec, policy: ManagedPolicy, ahead: int) -> Option:
        """What the provider would do with this spec."""
        name, found = self._provider.name, self._adapt(spec, policy)
        if isinstance(found, Rendition):
            return Option(name, self._health, found, ahead=ahead)
        return Option(name, self._health, obstacle=found, ahead=ahead)

    def expect_seconds(self, spec: VideoSpec) -> float | None:
        """From start to clip at the provider, as far as it is known."""
        seconds = self.survey(replace(spec, prompt=""), _ANYTHING, 0).seconds
        return None if seconds == float("inf") else seconds

    def _adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition | Obstacle:
        if self._offers_at is None:
            return _UNASKED
        if not self._is_manned:
            return _UNMANNED
        kind = spec.source.kind if spec.source is not None else None
        shape = (spec.model, spec.width, spec.height, spec.seconds, spec.fps, len(spec.prompt), kind, policy)
        shapes = self._shapes
        if (known := shapes.get(shape)) is not None:
            return known
        # Kept for other jobs of the same shape: nothing of this one's text may be in it.
        plain = replace(spec, prompt="x" * len(spec.prompt), negative_prompt=None)
        if len(shapes) >= _MOST_SHAPES:
            shapes.clear()
        found = self._ask(plain, policy)
        if isinstance(found, Rendition) or found[0] is not RouteReason.PROVIDER_UNHEALTHY:
            shapes[shape] = found
        return found

    def _ask(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition | Obstacle:
        try:
            return self._provider.adapt(spec, policy)
        except ProviderCannot as exc:
            words = str(exc)
        except ProviderError as exc:
            return RouteReason.PROVIDER_UNHEALTHY, str(exc)
        try:
            self._provider.adapt(spec, _ANYTHING)
        except ProviderError:
            return RouteReason.PROVIDER_CANNOT, words
        return RouteReason.POLICY, words


def count_managed(backlog: Backlog) -> int:
    """Jobs on the managed route, waiting or rendering."""
    return sum(load.jobs for load in backlog.loads if load.route is Route.MANAGED)
