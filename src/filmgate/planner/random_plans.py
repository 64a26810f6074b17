"""Random questions about clips, and the properties that every answer must have."""

import random
import re
from collections.abc import Iterator
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Answer
from filmgate.planner.capabilities import FILMGATE
from filmgate.planner.fleet.answer import VideoFleetAnswer
from filmgate.planner.fleet.scaled import Start, latency_again
from filmgate.planner.fleet.simulation import fixed_fleet_latencies, peak_arrivals
from filmgate.planner.fleet.sizing import Demand, Layout
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape
from filmgate.planner.percentiles import percentile
from filmgate.planner.plan_checks import (
    REGIONS,
    Facts,
    PlanCheck,
    Subject,
    check_answers,
    disagreeing,
    disagreeing_json,
    fleet_and_cost,
    fleet_size,
    is_close,
    unbalanced,
)
from filmgate.planner.report.numbers import seconds, usd
from filmgate.planner.video.answer import plan_video, video_usd_per_day
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion

CHECK_ARRIVALS = 8000


def check_plans(catalog: Catalog, calibration: Calibration, questions: int) -> PlanCheck:
    """Asks this many random questions about clips."""
    subject = Subject("video", random_question, plan_video, video_usd_per_day, _problems, _harder, _overrun)
    return check_answers(subject, catalog, calibration, questions)


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


def _overrun(question: VideoQuestion, answer: Answer, _: Facts, seed: int) -> float | None:
    if question.slo_seconds is None:
        return None
    return worst_latency_again(question, answer, seed) / question.slo_seconds


def worst_latency_again(question: VideoQuestion, answer: Answer, seed: int) -> float:
    """p95 of one tenant's part of the fleet, clips at the upper end, the spare machines lost."""
    size, time = fleet_size(answer), answer.time
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


def _problems(question: VideoQuestion, answer: Answer) -> Iterator[str]:
    cost, size = answer.cost, fleet_size(answer)
    assert cost is not None, "a possible plan has a cost"
    yield from unrunnable(answer)
    yield from unbalanced(answer)
    if not is_close((cost.usd_per_day or 0.0) / (question.clips_per_day or 1.0), cost.usd_per_clip):
        yield "the cost of a clip is not that of the bill"
    figures = {
        "machines": f"{size.instances} x {_fleet(answer).machine}",
        "per month": usd(cost.usd_per_month),
        "per clip": usd(cost.usd_per_clip),
        "p95": seconds(size.latency_p95),
        "worst p95": seconds(size.worst_p95 or 0.0),
    }
    yield from disagreeing(answer, figures)
    yield from _disagreeing_json(answer)
    if answer.verdict.startswith("Run ") and f"${cost.usd_per_month:,.0f} per month" not in answer.verdict:
        yield "the verdict states another monthly cost"


def _disagreeing_json(answer: Answer) -> Iterator[str]:
    (fleet, cost), size = fleet_and_cost(answer), fleet_size(answer)
    assert answer.cost is not None, "a possible plan has a cost"
    pairs = (
        ("instances", fleet["instances"], size.instances),
        ("machines to deploy", fleet["deployment"]["machines"], size.instances),
        ("p95", fleet["latency_p95"], size.latency_p95),
        ("per month", cost["usd_per_month"], answer.cost.usd_per_month),
        ("per clip", cost["usd_per_clip"], answer.cost.usd_per_clip),
    )
    yield from disagreeing_json(pairs)


def _harder(question: VideoQuestion, facts: Facts) -> Iterator[tuple[str, VideoQuestion, Catalog]]:
    catalog = facts.catalog
    clips, slo = question.clips_per_day or 1.0, question.slo_seconds
    yield "more clips", replace(question, clips_per_day=clips * 1.5), catalog
    yield "a tighter objective", replace(question, slo_seconds=slo * 0.8 if slo else 4000), catalog
    yield "more spare machines", replace(question, spare_machines=2), catalog
    yield "separate hardware", replace(question, tenants=6, tenancy=Tenancy.INSTANCE), catalog
    yield "dearer prices", question, facts.dearer


def _fleet(answer: Answer) -> VideoFleetAnswer:
    assert isinstance(answer.fleet, VideoFleetAnswer), "the question is about clips"
    return answer.fleet
