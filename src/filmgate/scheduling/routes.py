"""Own GPU or managed provider: a pure function of values. No I/O, no clock, no globals.

A job leaves when our GPUs would miss its deadline, or when it has waited past the limit; and then only for a
provider that its tenant allows, that is well, and that will have the clip sooner than waiting would.
"""

from dataclasses import dataclass

from filmgate.jobs import ManagedPolicy, Route, RouteReason, Routing, VideoSpec
from filmgate.providers.adaptation import obstacles
from filmgate.providers.base import Rendition
from filmgate.providers.circuit import Health, Phase
from filmgate.settings import RoutingSettings


@dataclass(frozen=True, slots=True)
class Home:
    """What staying means: seconds until a GPU is free (infinite when none is alive), and the work itself."""

    wait_seconds: float
    work_seconds: float

    @property
    def seconds(self) -> float:
        return self.wait_seconds + self.work_seconds


@dataclass(frozen=True, slots=True)
class Option:
    """What one provider would do with the job, or why it would not (`obstacle`).

    `ahead` counts the jobs it already has from us.
    """

    provider: str
    health: Health
    rendition: Rendition | None = None
    obstacle: tuple[RouteReason, str] = (RouteReason.PROVIDER_CANNOT, "it offers nothing")
    ahead: int = 0

    @property
    def rounds_before(self) -> int:
        """How often its whole concurrency must finish before it can start one more."""
        most = self.rendition.offer.max_concurrent if self.rendition is not None else None
        return 0 if most is None else self.ahead // max(most, 1)

    @property
    def seconds(self) -> float:
        """From now to the finished clip, at the pace it has shown."""
        if self.rendition is None:
            return float("inf")
        offer = self.rendition.offer
        length = self.rendition.spec.seconds / min(offer.seconds) if offer.seconds else 1.0
        return offer.expected_seconds * max(length, 1.0) * self.health.pace * (1 + self.rounds_before)


@dataclass(frozen=True, slots=True)
class Case:
    """Everything a choice depends on."""

    now: float
    deadline_at: float
    home: Home
    policy: ManagedPolicy
    spec: VideoSpec
    waited_seconds: float = 0.0
    may_probe: bool = False  # this job may be the one that tries a provider that was not well


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the job goes, and why."""

    route: Route
    routing: Routing


AT_HOME = Choice(Route.GPU, Routing())


def find_wish(case: Case, settings: RoutingSettings) -> RouteReason | None:
    """Why the job should leave, if it should; asked first, because almost always it should not."""
    if case.now + case.home.seconds * settings.safety_factor > case.deadline_at:
        return RouteReason.DEADLINE
    return RouteReason.AGE if case.waited_seconds >= settings.spill_after_seconds else None


def choose(case: Case, options: tuple[Option, ...], settings: RoutingSettings) -> Choice:
    """The route of a job: of the options that will do the cheapest, of those the fastest."""
    wish = find_wish(case, settings)
    if wish is None:
        return AT_HOME
    if not case.policy.is_allowed:
        return _stay(case, RouteReason.POLICY, "the tenant allows no managed provider")
    if not options:
        return _stay(case, RouteReason.DISABLED, "no provider is configured")
    objections = [_object(case, option, settings) for option in options]
    able = [option for option, objection in zip(options, objections, strict=True) if objection is None]
    if not able:
        reason, words = next(objection for objection in objections if objection is not None)
        return _stay(case, reason, words)
    best = able[0] if len(able) == 1 else min(able, key=_price)
    return _leave(case, best, wish, settings)


def _price(option: Option) -> tuple[float, float]:
    return (option.rendition.usd if option.rendition is not None else 0.0), option.seconds


def _object(case: Case, option: Option, settings: RoutingSettings) -> tuple[RouteReason, str] | None:
    """What speaks against this option, the firmest reason first."""
    if option.rendition is None:
        return option.obstacle
    # Asked again, whoever proposed the rendition: what the tenant forbids is never chosen.
    if found := obstacles(case.spec, option.rendition, case.policy):
        return RouteReason.POLICY, found[0]
    is_well = option.health.phase is Phase.CLOSED or (option.health.can_probe and case.may_probe)
    if not is_well:
        return RouteReason.PROVIDER_UNHEALTHY, f"{option.provider} is {option.health.phase}"
    seconds = option.seconds
    if seconds >= case.home.seconds:
        return RouteReason.PROVIDER_SLOWER, f"{option.provider} takes {seconds:.0f} s"
    if _is_worth_it(case, option, settings):
        return None
    return RouteReason.TOO_LATE, f"{option.provider} takes {seconds:.0f} s"


def _is_worth_it(case: Case, option: Option, settings: RoutingSettings) -> bool:
    """In time; or late, but started at once for a job that is old or has no GPU to wait for."""
    if _is_in_time(case, option, settings):
        return True
    is_stranded = case.home.seconds == float("inf")
    return option.rounds_before == 0 and (is_stranded or case.waited_seconds >= settings.spill_after_seconds)


def _is_in_time(case: Case, option: Option, settings: RoutingSettings) -> bool:
    return case.now + option.seconds * settings.safety_factor <= case.deadline_at


def _stay(case: Case, reason: RouteReason, words: str) -> Choice:
    routing = Routing(reason, f"{_describe_home(case)}; {words}", decided_at=case.now)
    return Choice(Route.GPU, routing)


def _leave(case: Case, option: Option, wish: RouteReason, settings: RoutingSettings) -> Choice:
    rendition = option.rendition
    assert rendition is not None
    is_old = case.waited_seconds >= settings.spill_after_seconds
    routing = Routing(
        # A job that is old and late goes because it is old, unless leaving still saves its deadline.
        reason=RouteReason.AGE if is_old and not _is_in_time(case, option, settings) else wish,
        detail=f"{_describe_home(case)}; {option.provider} takes {option.seconds:.0f} s",
        provider=option.provider,
        offer=rendition.offer.model,
        changes=rendition.changes,
        usd=rendition.usd,
        decided_at=case.now,
    )
    return Choice(Route.MANAGED, routing)


def _describe_home(case: Case) -> str:
    home, left = case.home, case.deadline_at - case.now
    if home.wait_seconds == float("inf"):
        return f"no GPU worker is alive, {left:.0f} s left"
    return f"home takes {home.seconds:.0f} s ({home.wait_seconds:.0f} s of it waiting), {left:.0f} s left"
