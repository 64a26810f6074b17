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
from filmgate.planner.fleet.scaled import latency_again
from filmgate.planner.fleet.simulation import fixed_fleet_latencies, peak_arrivals
from filmgate.planner.fleet.sizing import Demand, Layout, per_pool
from filmgate.planner.fleet.starts import Start
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape
from filmgate.planner.percentiles import percentile
from filmgate.planner.plan_checks import (
    REGIONS,
    PlanCheck,
    Subject,
    check_answers,
    disagreeing,
    disagreeing_json,
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


def _overrun(
    question: VideoQuestion, answer: Answer, _catalog: Catalog, _calibration: Calibration, seed: int
) -> float | None:
    """p95 of one tenant's clips, at the upper end and with the spare machines lost, relative to its limit.

    A fleet that scales to zero is simulated for whole days with its cold starts.
    """
    if question.slo_seconds is None:
        return None
    fleet, size, time, traffic = _fleet(answer), fleet_size(answer), answer.time, question.traffic
    assert time is not None, "a possible plan has a time"
    assert traffic is not None, "random questions have a volume"
    if not size.is_scaled:
        left = size.needed_replicas // size.pools
        arrivals = peak_arrivals(per_pool(traffic, size.pools), max(CHECK_ARRIVALS, 20 * left), seed)
        latencies = fixed_fleet_latencies(arrivals, time.high, left)[len(arrivals) // 10 :]
        return percentile(latencies, 0.95) / question.slo_seconds
    demand = Demand(traffic, time.seconds_per_clip or time.high, time.high, question.slo_seconds)
    layout = Layout(replicas_per_machine=fleet.deployment.workers_per_machine, pools=size.pools)
    start = Start.slowest(fleet.cold_start)
    return latency_again(demand, layout, start, size, seed) / question.slo_seconds


def unrunnable(answer: Answer) -> Iterator[str]:
    """What the answer recommends and the table of capabilities does not contain."""
    deployment = _fleet(answer).deployment
    if any(option.gpus_per_replica > 1 for option in answer.options) and not FILMGATE.can_split_clips:
        yield "an option splits a clip over GPUs"
    if deployment.machines != fleet_size(answer).instances:
        yield "the machines to deploy are not those of the fleet"
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
    yield from disagreeing_json(answer)
    if answer.verdict.startswith("Run ") and f"${cost.usd_per_month:,.0f} per month" not in answer.verdict:
        yield "the verdict states another monthly cost"


def _harder(question: VideoQuestion) -> Iterator[tuple[str, VideoQuestion]]:
    clips, slo = question.clips_per_day or 1.0, question.slo_seconds
    yield "more clips", replace(question, clips_per_day=clips * 1.5)
    yield "a tighter objective", replace(question, slo_seconds=slo * 0.8 if slo else 4000)
    yield "more spare machines", replace(question, spare_machines=2)
    yield "separate hardware", replace(question, tenants=6, tenancy=Tenancy.INSTANCE)


def _fleet(answer: Answer) -> VideoFleetAnswer:
    assert isinstance(answer.fleet, VideoFleetAnswer), "the question is about clips"
    return answer.fleet
