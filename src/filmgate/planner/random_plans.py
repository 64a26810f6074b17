"""Random questions, and the properties that every answer must have. `plan validate --questions` runs them."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Answer
from filmgate.planner.capabilities import FILMGATE
from filmgate.planner.fleet.answer import VideoFleetAnswer
from filmgate.planner.fleet.scaled import Start, latency_again
from filmgate.planner.fleet.simulation import fixed_fleet_latencies, peak_arrivals
from filmgate.planner.fleet.sizing import MAX_LATE, Demand, Layout
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape
from filmgate.planner.percentiles import percentile
from filmgate.planner.report.numbers import seconds, usd
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion

REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "eu-north-1", "ap-northeast-1", "sa-east-1")
CHECK_ARRIVALS = 8000
CHECK_SEED = 1000
DEARER = 1.2
RECORD_DAY = date(2026, 11, 16)  # the date in the compared reports; any day does
ROUNDED = 1e-4  # JSON has five digits
ROUNDING = 1e-9  # of sums of floats: a harder question may not cost less by more than this share


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """The result of many random questions.

    `late` verdicts miss their target in a simulation with arrivals that the planner did not use, with clips
    at the upper end of the interval and the spare machines lost. `problems` are properties that do not hold.
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


@dataclass
class Tally:
    """Counts while questions are asked."""

    possible: int = 0
    with_target: int = 0
    late: int = 0
    late_unflagged: int = 0
    flagged: int = 0
    compared: int = 0
    problems: list[str] = field(default_factory=list)

    def result(self, questions: int) -> PlanCheck:
        return PlanCheck(
            questions=questions,
            possible=self.possible,
            with_target=self.with_target,
            late=self.late,
            late_unflagged=self.late_unflagged,
            flagged=self.flagged,
            compared=self.compared,
            problems=tuple(self.problems),
        )


def random_question(catalog: Catalog, seed: int) -> VideoQuestion:
    """A question about a model that Filmgate runs."""
    draw = random.Random(seed)  # noqa: S311 - a sample, not a secret
    model = draw.choice([m for m in catalog.video_models.values() if m.pipeline and FILMGATE.can_load(m)])
    return VideoQuestion(
        model,
        clip_for(model, steps=draw.choice((4, 20, None))),
        region=draw.choice(REGIONS),
        clips_per_day=float(round(10 ** draw.uniform(0.5, 4.3))),
        slo_seconds=draw.choice((None, round(10 ** draw.uniform(1.5, 4)))),
        shape=draw.choice(list(TrafficShape)),
        tenants=draw.choice((1, 1, 3)),
        tenancy=draw.choice(list(Tenancy)),
        commit_discount=draw.choice((None, 0.3)),
        interruptible_share=draw.choice((0.0, 0.4)),
    )


def check_plans(catalog: Catalog, calibration: Calibration, questions: int) -> PlanCheck:
    """Asks this many random questions and checks every answer, alone and against harder questions."""
    tally, dearer = Tally(), dearer_catalog(catalog)
    for seed in range(questions):
        question = random_question(catalog, seed)
        answer = plan_video(question, catalog, calibration)
        if not answer.is_possible:
            continue
        tally.possible += 1
        found = [*unrunnable(answer), *unbalanced(question, answer), *disagreeing(answer)]
        for name, harder, facts in _harder(question, catalog, dearer):
            tally.compared += 1
            found += cheaper(name, answer, plan_video(harder, facts, calibration))
        tally.problems += [f"question {seed}: {problem}" for problem in found]
        _count_lateness(tally, question, answer, seed)
    return tally.result(questions)


def _count_lateness(tally: Tally, question: VideoQuestion, answer: Answer, seed: int) -> None:
    size = _fleet(answer).size
    if question.slo_seconds is None or size is None:
        return
    is_late = worst_latency_again(question, answer, CHECK_SEED + seed) > question.slo_seconds * (1 + 1e-9)
    tally.with_target += 1
    tally.late += is_late
    tally.flagged += size.late_runs > 0
    tally.late_unflagged += is_late and not size.late_runs


def worst_latency_again(question: VideoQuestion, answer: Answer, seed: int) -> float:
    """p95 of one tenant's part of the fleet, clips at the upper end, the spare machines lost."""
    size, time = _fleet(answer).size, answer.time
    assert size is not None, "only a question with a volume has a fleet"
    assert time is not None, "a possible plan has a time"
    assert question.clips_per_day is not None, "random questions have a volume"
    if size.is_scaled:
        return _scaled_latency_again(question, answer, seed)
    left = size.needed_replicas // size.pools
    traffic = question.traffic(question.clips_per_day / size.pools)
    assert traffic is not None, "the volume is given"
    arrivals = peak_arrivals(traffic, max(CHECK_ARRIVALS, 20 * left), seed)
    return percentile(fixed_fleet_latencies(arrivals, time.high, left)[len(arrivals) // 10 :], 0.95)


def _scaled_latency_again(question: VideoQuestion, answer: Answer, seed: int) -> float:
    """The same of a fleet that scales to zero: whole days with its cold starts."""
    fleet, time, traffic = _fleet(answer), answer.time, question.traffic()
    assert fleet.size is not None, "only a question with a volume has a fleet"
    assert time is not None, "a possible plan has a time"
    assert traffic is not None, "random questions have a volume"
    starts = [start for start in fleet.cold_start if start.boot_seconds]
    start = Start(
        max(one.total_seconds for one in starts), max(one.load_seconds + one.build_seconds for one in starts)
    )
    demand = Demand(traffic, time.seconds_per_clip or time.high, time.high, question.slo_seconds)
    layout = Layout(replicas_per_machine=fleet.deployment.workers_per_machine, pools=fleet.size.pools)
    return latency_again(demand, layout, start, fleet.size, seed)


def unrunnable(answer: Answer) -> Iterator[str]:
    """What the answer recommends and the table of capabilities does not contain."""
    deployment = _fleet(answer).deployment
    if any(option.gpus_per_replica > 1 for option in answer.options) and not FILMGATE.can_split_clips:
        yield "an option splits a clip over GPUs"
    if deployment.offload not in FILMGATE.offload_levels:
        yield f"offload level {deployment.offload} does not exist"
    unsupported = "fp8|adapter|GPUs per clip" + ("" if FILMGATE.can_scale_to_zero else "|scale to zero")
    if re.search(rf"^(Run|Use).*({unsupported})", answer.verdict):
        yield "the verdict recommends what Filmgate does not run"


def unbalanced(question: VideoQuestion, answer: Answer) -> Iterator[str]:
    """Where bill, fleet and ranking contradict each other."""
    cost, size = answer.cost, _fleet(answer).size
    assert cost is not None, "a possible plan has a cost"
    assert size is not None, "random questions have a volume"
    parts = sum(part.usd_per_day for part in cost.purchase)
    if not is_close(parts, cost.usd_per_day):
        yield f"purchases of {parts} per day and a bill of {cost.usd_per_day}"
    if sum(part.instances for part in cost.purchase) != size.instances:
        yield "the purchases are not the machines of the fleet"
    if not is_close(parts / (question.clips_per_day or 1.0), cost.usd_per_clip):
        yield "the cost of a clip is not that of the bill"
    if answer.options[0].usd_per_unit != min(option.usd_per_unit or 0.0 for option in answer.options):
        yield "the first option is not the cheapest"


def figures(answer: Answer) -> dict[str, str]:
    """The numbers of a decision as every report must print them."""
    cost, size = answer.cost, _fleet(answer).size
    assert cost is not None, "a possible plan has a cost"
    assert size is not None, "random questions have a volume"
    return {
        "machines": f"{size.instances} x {_fleet(answer).machine}",
        "per month": usd(cost.usd_per_month),
        "per clip": usd(cost.usd_per_clip),
        "p95": seconds(size.latency_p95),
        "worst p95": seconds(size.worst_p95 or 0.0),
    }


def disagreeing(answer: Answer) -> Iterator[str]:
    """Numbers that text, JSON, page and record do not share."""
    cells = "\n".join(cell for table in tables(answer) for row in table.rows for cell in row)
    texts = {
        "text": cells,
        "page": to_page(answer, RECORD_DAY).replace("\u00a0", " "),
        "record": to_record(answer, RECORD_DAY),
    }
    for name, figure in figures(answer).items():
        yield from (
            f"{name} {figure} is not in the {kind}" for kind, text in texts.items() if figure not in text
        )
    yield from _disagreeing_json(answer)
    if answer.verdict not in texts["record"]:
        yield "the verdict is not in the record"
    monthly = answer.cost.usd_per_month if answer.cost else None
    if answer.verdict.startswith("Run ") and f"${monthly:,.0f} per month" not in answer.verdict:
        yield "the verdict states another monthly cost"


def _disagreeing_json(answer: Answer) -> Iterator[str]:
    document = answer.as_json()
    fleet, cost, size = document["fleet"], document["cost"], _fleet(answer).size
    assert isinstance(fleet, Mapping), "a possible plan has a fleet"
    assert isinstance(cost, Mapping), "a possible plan has a cost"
    assert size is not None, "random questions have a volume"
    assert answer.cost is not None, "a possible plan has a cost"
    pairs = (
        ("instances", fleet["instances"], size.instances),
        ("machines to deploy", fleet["deployment"]["machines"], size.instances),
        ("p95", fleet["latency_p95"], size.latency_p95),
        ("per month", cost["usd_per_month"], answer.cost.usd_per_month),
        ("per clip", cost["usd_per_clip"], answer.cost.usd_per_clip),
    )
    for name, written, value in pairs:
        if not is_close(float(written), value):
            yield f"{name} is {written} in JSON and {value} in the answer"


def _harder(
    question: VideoQuestion, catalog: Catalog, dearer: Catalog
) -> Iterator[tuple[str, VideoQuestion, Catalog]]:
    clips, slo = question.clips_per_day or 1.0, question.slo_seconds
    yield "more clips", replace(question, clips_per_day=clips * 1.5), catalog
    yield "a tighter objective", replace(question, slo_seconds=slo * 0.8 if slo else 4000), catalog
    yield "more spare machines", replace(question, spare_machines=2), catalog
    yield "separate hardware", replace(question, tenants=6, tenancy=Tenancy.INSTANCE), catalog
    yield "dearer prices", question, dearer


def cheaper(name: str, answer: Answer, harder: Answer) -> Iterator[str]:
    """A harder question that costs less."""
    if not harder.is_possible or harder.cost is None or answer.cost is None:
        return
    before, after = answer.cost.usd_per_day or 0.0, harder.cost.usd_per_day or 0.0
    if after < before * (1 - ROUNDING):
        yield f"{name} costs {after:.2f} per day instead of {before:.2f}"


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


def _fleet(answer: Answer) -> VideoFleetAnswer:
    assert isinstance(answer.fleet, VideoFleetAnswer), "the question is about clips"
    return answer.fleet


def is_close(value: float, other: float | None) -> bool:
    return other is not None and abs(value - other) <= ROUNDED * max(abs(value), abs(other))
