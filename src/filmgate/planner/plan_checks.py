"""Asks random questions and checks the properties that every answer must have.

`plan validate --questions` runs it, for clips and for language models.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Generic, TypeVar

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Answer
from filmgate.planner.fleet.answer import LlmFleetAnswer, VideoFleetAnswer
from filmgate.planner.fleet.sizing import MAX_LATE, Fleet
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables

REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "eu-north-1", "ap-northeast-1", "sa-east-1")
CHECK_SEED = 1000
DEARER = 1.2
RECORD_DAY = date(2026, 11, 16)  # the date in the compared reports; any day does
ROUNDED = 1e-4  # JSON has five digits
ROUNDING = 1e-9  # of sums of floats: a harder question may not cost less by more than this share

Question = TypeVar("Question")


@dataclass(frozen=True, slots=True)
class Subject(Generic[Question]):
    """One kind of question.

    `problems` are the properties of an answer that do not hold. `harder` questions may not cost less;
    `usd_per_day` is their cost, None without an answer.
    `overrun` is the worst latency in a simulation with other arrivals, as a multiple of its limit; None
    without a limit.
    """

    name: str
    draw: Callable[[Catalog, int], Question]
    plan: Callable[[Question, Catalog, Calibration], Answer]
    usd_per_day: Callable[[Question, Catalog, Calibration], float | None]
    problems: Callable[[Question, Answer], Iterator[str]]
    harder: Callable[[Question], Iterator[tuple[str, Question]]]
    overrun: Callable[[Question, Answer, Catalog, Calibration, int], float | None]


@dataclass(slots=True)
class PlanCheck:
    """The result of many random questions, counted while they are asked.

    `late` verdicts miss their target in a simulation with arrivals that the planner did not use, at the upper
    end of the interval and with the spare machines lost. `problems` are properties that do not hold.
    """

    questions: int = 0
    possible: int = 0
    with_target: int = 0
    late: int = 0
    late_unflagged: int = 0
    flagged: int = 0
    compared: int = 0
    problems: tuple[str, ...] = ()

    @property
    def late_share(self) -> float:
        return self.late / self.with_target if self.with_target else 0.0

    @property
    def is_good(self) -> bool:
        """Every property holds, at least 95 % of the verdicts are feasible, and the others are flagged."""
        return not self.problems and self.late_share <= MAX_LATE and not self.late_unflagged

    def count_lateness(self, overrun: float, *, is_flagged: bool) -> None:
        """Count a verdict whose worst latency is this multiple of its limit."""
        is_late = overrun > 1 + ROUNDING
        self.with_target += 1
        self.late += is_late
        self.flagged += is_flagged
        self.late_unflagged += is_late and not is_flagged


def check_answers(
    subject: Subject[Question], catalog: Catalog, calibration: Calibration, questions: int
) -> PlanCheck:
    """Asks this many random questions and checks every answer, alone and against harder questions."""
    check, dearer = PlanCheck(questions), dearer_catalog(catalog)
    for seed in range(questions):
        question = subject.draw(catalog, seed)
        answer = subject.plan(question, catalog, calibration)
        if not answer.is_possible:
            continue
        check.possible += 1
        found = list(subject.problems(question, answer))
        harder = [(name, other, catalog) for name, other in subject.harder(question)]
        for name, other, prices in (*harder, ("dearer prices", question, dearer)):
            check.compared += 1
            found += cheaper(name, answer, subject.usd_per_day(other, prices, calibration))
        check.problems += tuple(f"{subject.name} question {seed}: {problem}" for problem in found)
        overrun = subject.overrun(question, answer, catalog, calibration, CHECK_SEED + seed)
        if overrun is not None:
            check.count_lateness(overrun, is_flagged=fleet_size(answer).late_runs > 0)
    return check


def fleet_size(answer: Answer) -> Fleet:
    assert isinstance(answer.fleet, VideoFleetAnswer | LlmFleetAnswer), "a possible plan has a fleet"
    assert answer.fleet.size is not None, "random questions have a volume"
    return answer.fleet.size


def cheaper(name: str, answer: Answer, after: float | None) -> Iterator[str]:
    """A harder question that costs less."""
    before = answer.cost.usd_per_day if answer.cost else None
    if before is not None and after is not None and after < before * (1 - ROUNDING):
        yield f"{name} costs {after:.2f} per day instead of {before:.2f}"


def unbalanced(answer: Answer) -> Iterator[str]:
    """Where bill, fleet and ranking contradict each other."""
    cost, size = answer.cost, fleet_size(answer)
    assert cost is not None, "a possible plan has a cost"
    parts = sum(part.usd_per_day for part in cost.purchase)
    if not is_close(parts, cost.usd_per_day):
        yield f"purchases of {parts} per day and a bill of {cost.usd_per_day}"
    if sum(part.instances for part in cost.purchase) != size.instances:
        yield "the purchases are not the machines of the fleet"
    if answer.options[0].usd_per_day != min(option.usd_per_day or 0.0 for option in answer.options):
        yield "the first option is not the cheapest"


def disagreeing(answer: Answer, figures: Mapping[str, str]) -> Iterator[str]:
    """Figures that text, page and record do not share, and a verdict that the record lacks."""
    texts = {
        "text": "\n".join(cell for table in tables(answer) for row in table.rows for cell in row),
        "page": to_page(answer, RECORD_DAY).replace("\u00a0", " "),
        "record": to_record(answer, RECORD_DAY),
    }
    for name, figure in figures.items():
        yield from (
            f"{name} {figure} is not in the {kind}" for kind, text in texts.items() if figure not in text
        )
    if answer.verdict not in texts["record"]:
        yield "the verdict is not in the record"


def disagreeing_json(answer: Answer) -> Iterator[str]:
    """Figures of the JSON that differ from those of the answer."""
    document: Mapping[str, Any] = answer.as_json()
    size = ("instances", "spare_instances", "replicas", "latency_p95")
    usd = ("usd_per_day", "usd_per_month", "usd_per_clip", "usd_per_million_tokens")
    for part, figures, names in (("fleet", fleet_size(answer), size), ("cost", answer.cost, usd)):
        for name in names:
            written, value = document[part][name], getattr(figures, name)
            if written != value and not is_close(written, value):
                yield f"{name} is {written} in JSON and {value} in the answer"


def dearer_catalog(catalog: Catalog) -> Catalog:
    """The catalog with higher prices of every machine."""

    def scaled(value: float | None) -> float | None:
        return value * DEARER if value is not None else None

    return catalog.with_entries(
        prices=[
            replace(
                price,
                on_demand=scaled(price.on_demand),
                spot_min=scaled(price.spot_min),
                spot_median=scaled(price.spot_median),
                spot_max=scaled(price.spot_max),
            )
            for price in catalog.prices.values()
        ]
    )


def is_close(value: float | None, other: float | None) -> bool:
    if value is None or other is None:
        return False
    return abs(value - other) <= ROUNDED * max(abs(value), abs(other))
