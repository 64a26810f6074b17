"""The answer to every planner question. `--json`, the tables, the page and the decision record show it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Protocol

from filmgate.planner.fleet.answer import Alternative, CostAnswer, FleetAnswer, fleet_as_json
from filmgate.planner.fleet.pattern import WORKLOADS
from filmgate.planner.memory import MemoryLine

MAX_NAMES = 4  # of facts with the same source


class Kind(StrEnum):
    """The question that an answer belongs to."""

    VIDEO = "video"
    LLM = "llm"
    FIT = "fit"
    RIGHTSIZE = "rightsize"


class Unit(StrEnum):
    """The unit of work that `usd_per_unit` of an option pays for."""

    CLIP = "clip"
    TOKENS = "million tokens"


@dataclass(frozen=True, slots=True)
class MemoryLever:
    """A change to peak memory, and the seconds it adds to a clip where that is known."""

    name: str
    peak_bytes: float
    peak_stage: str
    added_seconds: float | None


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The memory budget of one GPU. Lines include the safety factor."""

    lines: tuple[MemoryLine, ...]
    peak_bytes: float
    peak_stage: str
    capacity_bytes: float | None
    safety_factor: float
    levers: tuple[MemoryLever, ...] = ()


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """Seconds of a stage by resource."""

    stage: str
    seconds: float
    compute: float
    memory: float
    interconnect: float
    bound: str


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Latency and throughput of a language model."""

    first_token_ms: float
    between_tokens_ms: float
    tokens_per_second: float
    first_token_ms_p50: float
    first_token_ms_p95: float
    first_token_ms_p99: float
    between_tokens_ms_p50: float
    between_tokens_ms_p95: float
    between_tokens_ms_p99: float


@dataclass(frozen=True, slots=True)
class TimeAnswer:
    """Time with its interval: seconds per clip, or for a language model seconds between tokens."""

    seconds_per_clip: float | None
    low: float
    high: float
    stages: tuple[StageAnswer, ...]
    bound: str
    is_extrapolated: bool
    note: str
    tokens: TokenTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A machine that meets the requirements, or a model that fits a machine.

    A time or size of zero is not known. `usd_per_unit` is the price of one `unit`.
    """

    rank: int
    name: str
    unit: Unit | None = None
    gpu: str
    gpus_per_replica: int
    replicas: int = 1
    instances: int = 1
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    latency_p95: float = 0.0
    utilisation: float = 1.0
    usd_per_hour: float | None
    usd_per_day: float | None
    usd_per_unit: float | None = None
    placement: str = ""
    peak_bytes: float = 0.0
    is_scaled_to_zero: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A machine that does not meet the requirements, with the figure and the limit that it misses."""

    name: str
    reason: str
    number: float | None = None
    limit: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Plots:
    """Cost against volume with break-even points, and latency against load."""

    cost: tuple[Curve, ...] = ()
    break_even: tuple[tuple[str, float], ...] = ()
    latency: tuple[Curve, ...] = ()
    slo_seconds: float | None = None
    volume: float | None = None
    volume_name: str = "clips per day"
    cost_name: str = "USD per clip"
    load_name: str = "utilization of the fleet"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    question: str
    kind: Kind
    verdict: str
    is_possible: bool
    memory: MemoryAnswer | None = None
    time: TimeAnswer | None = None
    fleet: FleetAnswer | None = None
    cost: CostAnswer | None = None
    options: tuple[Option, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    sources: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    plan_b: tuple[Alternative, ...] = ()
    plots: Plots = field(default_factory=Plots)

    def as_json(self) -> dict[str, object]:
        return {
            "verdict": self.verdict,
            "question": self.question,
            "is_possible": self.is_possible,
            "kind": self.kind.value,
            "memory": rounded(asdict(self.memory)) if self.memory else None,
            "time": rounded(asdict(self.time)) if self.time else None,
            "fleet": rounded(fleet_as_json(self.fleet)) if self.fleet else None,
            "cost": rounded(asdict(self.cost)) if self.cost else None,
            "options": [rounded(asdict(option)) for option in self.options],
            "rejected": [rounded(asdict(rejected)) for rejected in self.rejected],
            "serving_patterns": [asdict(workload) for workload in WORKLOADS],
            "plan_b": [rounded(asdict(alternative)) for alternative in self.plan_b],
            "assumptions": list(self.assumptions),
            "sources": list(self.sources),
        }


def rounded(value: object) -> object:
    """Floats with five significant digits, bytes as integers, and null for infinity and NaN."""
    if isinstance(value, dict):
        return {key: _rounded_item(key, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if isfinite(value) else None
    return value


def _rounded_item(key: str, value: object) -> object:
    if isinstance(value, float) and key.endswith("bytes"):
        return round(value)
    return rounded(value)


def dated_source(kind: str, name: str, source: str, as_of: str) -> str:
    return f"{kind} {name}: {source} ({as_of})"


class Fact(Protocol):
    """An entry of the catalog."""

    @property
    def source(self) -> str: ...

    @property
    def as_of(self) -> str: ...


def grouped_sources(kind: str, facts: Iterable[tuple[str, Fact]]) -> list[str]:
    """The sources of named facts of one kind: one line for each source, with the first names."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for name, fact in facts:
        names.setdefault((fact.source, fact.as_of), {})[name] = None
    found = []
    for (source, as_of), every in names.items():
        more = f" and {len(every) - MAX_NAMES} more" if len(every) > MAX_NAMES else ""
        found.append(dated_source(kind, f"{', '.join(list(every)[:MAX_NAMES])}{more}", source, as_of))
    return found


def closest(rejected: Sequence[Rejected], unit: str) -> Rejected | None:
    """The rejection in this unit that exceeds its limit by the least."""
    return min(
        (r for r in rejected if r.unit == unit and r.number is not None),
        key=lambda r: (r.number or 0.0) - (r.limit or 0.0),
        default=None,
    )
