"""Chooses between local GPUs and a managed provider: a pure function of values.

A job goes to a provider when the local GPUs would miss its deadline or when it has waited past the limit, and
only if its tenant allows the provider, the provider is healthy and it will finish the clip sooner.
"""

from dataclasses import dataclass
from math import inf, isinf
from typing import Protocol

from filmgate.jobs import ManagedPolicy, Route, RouteReason, Routing, VideoSpec
from filmgate.settings import RoutingSettings

Obstacle = tuple[RouteReason, str]


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """Whether a provider may be used. `can_probe`: it is unhealthy, but one job may test it now."""

    is_healthy: bool = True
    can_probe: bool = False
    state: str = "closed"


@dataclass(frozen=True, slots=True)
class Quote:
    """What a provider would do with a job, or the `obstacle` that prevents it.

    `seconds` is from now to the finished clip. `rounds_before` is how often the provider's whole concurrency
    must finish before it can start the job.
    """

    provider: str
    health: ProviderHealth = ProviderHealth()
    seconds: float = inf
    rounds_before: int = 0
    usd: float = 0.0
    model: str = ""
    changes: tuple[str, ...] = ()
    obstacle: Obstacle | None = None


class ManagedRoute(Protocol):
    """A managed provider as scheduling sees it."""

    @property
    def health(self) -> ProviderHealth:
        """As of the last refresh."""
        ...

    def refresh(self) -> None:
        """Read the provider's health and, once a minute, its models. Blocks; not for request threads."""
        ...

    def quote(self, spec: VideoSpec, policy: ManagedPolicy, jobs_ahead: int) -> Quote:
        """What the provider would do with this spec, from what the last refresh read."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a choice depends on.

    `gpu_wait_seconds` is the time until a GPU is free for the job, infinite when no worker serves it.
    `may_probe`: this job may test an unhealthy provider.
    """

    now: float
    deadline_at: float
    gpu_wait_seconds: float
    gpu_work_seconds: float
    policy: ManagedPolicy
    waited_seconds: float = 0.0
    may_probe: bool = False

    @property
    def gpu_seconds(self) -> float:
        """From now to the finished clip on local GPUs."""
        return self.gpu_wait_seconds + self.gpu_work_seconds


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the job goes, and why."""

    route: Route
    routing: Routing


ON_GPU = Choice(Route.GPU, Routing())


def reason_to_leave(case: Case, settings: RoutingSettings) -> RouteReason | None:
    """Why the job should go to a provider; None in the usual case, for which no quote is needed."""
    if case.now + case.gpu_seconds * settings.safety_factor > case.deadline_at:
        return RouteReason.DEADLINE
    return RouteReason.AGE if case.waited_seconds >= settings.spill_after_seconds else None


def choose(case: Case, quote: Quote, settings: RoutingSettings) -> Choice:
    """The route of a job, given the quote of the provider."""
    reason = reason_to_leave(case, settings)
    if reason is None:
        return ON_GPU
    if not case.policy.is_allowed:
        return _stay(case, RouteReason.POLICY, "the tenant allows no managed provider")
    if (obstacle := _find_obstacle(case, quote, settings)) is not None:
        return _stay(case, *obstacle)
    return _leave(case, quote, reason, settings)


def _find_obstacle(case: Case, quote: Quote, settings: RoutingSettings) -> Obstacle | None:
    if quote.obstacle is not None:
        return quote.obstacle
    if not quote.health.is_healthy and not (quote.health.can_probe and case.may_probe):
        return RouteReason.PROVIDER_UNHEALTHY, f"the breaker of {quote.provider} is {quote.health.state}"
    takes = f"{quote.provider} takes {quote.seconds:.0f} s"
    if quote.seconds >= case.gpu_seconds:
        return RouteReason.PROVIDER_SLOWER, takes
    return None if _is_worth_it(case, quote, settings) else (RouteReason.TOO_LATE, takes)


def _is_worth_it(case: Case, quote: Quote, settings: RoutingSettings) -> bool:
    """On time; or late but started immediately, for a job that is old or that no GPU worker serves."""
    if _is_in_time(case, quote, settings):
        return True
    is_old = case.waited_seconds >= settings.spill_after_seconds
    return quote.rounds_before == 0 and (is_old or isinf(case.gpu_seconds))


def _is_in_time(case: Case, quote: Quote, settings: RoutingSettings) -> bool:
    return case.now + quote.seconds * settings.safety_factor <= case.deadline_at


def _stay(case: Case, reason: RouteReason, message: str) -> Choice:
    routing = Routing(reason, f"{_describe_gpu(case)}; {message}", decided_at=case.now)
    return Choice(Route.GPU, routing)


def _leave(case: Case, quote: Quote, reason: RouteReason, settings: RoutingSettings) -> Choice:
    is_old = case.waited_seconds >= settings.spill_after_seconds
    routing = Routing(
        # A job that is old and late leaves because of its age, unless leaving still meets its deadline.
        reason=RouteReason.AGE if is_old and not _is_in_time(case, quote, settings) else reason,
        detail=f"{_describe_gpu(case)}; {quote.provider} takes {quote.seconds:.0f} s",
        provider=quote.provider,
        provider_model=quote.model,
        changes=quote.changes,
        usd=quote.usd,
        expected_seconds=quote.seconds,
        decided_at=case.now,
    )
    return Choice(Route.MANAGED, routing)


def _describe_gpu(case: Case) -> str:
    left = case.deadline_at - case.now
    if isinf(case.gpu_wait_seconds):
        return f"no GPU worker is alive, {left:.0f} s until the deadline"
    wait = f"{case.gpu_wait_seconds:.0f} s of it waiting"
    return f"your GPUs take {case.gpu_seconds:.0f} s ({wait}), {left:.0f} s until the deadline"
