"""What a plan says: one shape for every question, so that JSON, page and record tell the same story."""

from dataclasses import asdict, dataclass, field
from math import isfinite

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """One line of the budget, as charged; `stages` are those it is resident in."""

    name: str
    bytes: float
    stages: tuple[str, ...]
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class MemoryLever:
    """A change that moves the peak, and what it costs in time where it costs any."""

    name: str
    peak_bytes: float
    peak_stage: str
    saved_bytes: float
    added_seconds: float | None


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The budget of one GPU."""

    lines: tuple[MemoryPart, ...]
    peak_bytes: float
    peak_stage: str
    capacity_bytes: float | None
    safety_factor: float
    placement: str
    levers: tuple[MemoryLever, ...] = ()


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """Seconds of a stage and what it waits for."""

    stage: str
    seconds: float
    compute: float
    memory: float
    interconnect: float
    bound: str


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """Time with its interval; for a language model the per-token figures stand in `tokens`."""

    seconds_per_clip: float | None
    low: float
    high: float
    stages: tuple[StageAnswer, ...]
    bound: str
    is_extrapolated: bool
    note: str
    tokens: Json | None = None


@dataclass(frozen=True, slots=True)
class Option:
    """One way that works, with what ranks it."""

    rank: int
    name: str
    gpu: str
    gpus_per_replica: int
    replicas: int
    instances: int
    seconds: float
    low: float
    high: float
    latency_p95: float
    utilisation: float
    usd_per_hour: float | None
    usd_per_day: float | None
    usd_per_unit: float | None
    placement: str
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class Rejected:
    """One way that does not, and the one number that says so."""

    name: str
    reason: str
    number: float | None
    limit: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a plot."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Plots:
    """What the page draws: cost against volume with the break-even, latency against load."""

    cost: tuple[Curve, ...] = ()
    break_even: tuple[tuple[str, float], ...] = ()
    latency: tuple[Curve, ...] = ()
    slo_seconds: float | None = None
    volume: float | None = None
    volume_name: str = "clips a day"
    load_name: str = "share of the fleet that is busy"


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole answer; `as_json` is the contract, the rest feeds the page and the record."""

    question: str
    unit: str
    verdict: str
    is_possible: bool
    memory: MemoryAnswer | None
    time: TimeAnswer | None
    fleet: Json | None
    cost: Json | None
    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    sources: tuple[str, ...]
    assumptions: tuple[str, ...] = ()
    plots: Plots = field(default_factory=Plots)

    def as_json(self) -> Json:
        """The object `--json` prints."""
        return {
            "verdict": self.verdict,
            "memory": tidy(asdict(self.memory)) if self.memory else None,
            "time": tidy(asdict(self.time)) if self.time else None,
            "fleet": tidy(self.fleet),
            "cost": tidy(self.cost),
            "options": [tidy(asdict(option)) for option in self.options],
            "rejected": [tidy(asdict(rejected)) for rejected in self.rejected],
            "sources": list(self.sources),
        }


def tidy(value: object) -> object:
    """Five significant digits, whole bytes, no infinity: a false digit is worse than none."""
    if isinstance(value, dict):
        return {key: _whole(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [tidy(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if isfinite(value) else None
    return value


def _whole(key: str, value: object) -> object:
    if isinstance(value, float) and key.endswith("bytes"):
        return round(value)
    return tidy(value)
