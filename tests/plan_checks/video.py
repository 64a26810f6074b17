"""Random questions about clips, and the properties that every answer must have."""

import math
import random
import re
from dataclasses import replace
from typing import get_args

from filmgate.planner.capabilities import FILMGATE, family_of
from filmgate.planner.fleet.money import Terms
from filmgate.planner.fleet.pattern import Pattern
from filmgate.planner.fleet.scaled import latency_again
from filmgate.planner.fleet.simulation import fixed_fleet_latencies, peak_arrivals
from filmgate.planner.fleet.sizing import Demand, Layout, per_pool
from filmgate.planner.fleet.starts import Start
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.percentiles import percentile
from filmgate.planner.report.numbers import seconds, usd
from filmgate.planner.video.answer import plan_video as plan
from filmgate.planner.video.answer import ranked
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion
from filmgate.settings import PipelineSettings
from tests.plan_checks.check import REGIONS, find_bill_errors, find_report_differences, is_close

__all__ = ["NAME", "draw", "harder", "overrun", "plan", "problems", "usd_per_day"]
NAME = "video"
CHECK_ARRIVALS = 8000


def draw(catalog, seed):
    """A question about a model that Filmgate runs."""
    random_ = random.Random(seed)
    models = [m for m in catalog.video_models.values() if family_of(m)]
    model = random_.choice(models)
    clip, region = clip_for(model, steps=random_.choice((4, 20, None))), random_.choice(REGIONS)
    volume = float(round(10 ** random_.uniform(0.5, 4.3)))
    slo = random_.choice((None, round(10 ** random_.uniform(1.5, 4))))
    return VideoQuestion(
        model,
        clip,
        region=region,
        traffic=traffic_of(volume, random_.choice(list(TrafficShape))),
        slo_seconds=slo,
        tenants=random_.choice((1, 1, 3)),
        tenancy=random_.choice(list(Tenancy)),
        terms=Terms(random_.choice((None, 0.3)), random_.choice((0.0, 0.4))),
    )


def usd_per_day(question, catalog, calibration):
    """The cost of the answer alone, which is much faster; None if there is no answer."""
    _, candidates, _ = ranked(question, catalog, calibration)
    return candidates[0].bill.usd_per_day if candidates else None


def overrun(question, answer, _catalog, _calibration, seed):
    """p95 of one tenant's clips, at the upper end and with the spare machines lost, relative to its limit.

    A fleet that scales to zero is simulated for whole days with its cold starts.
    """
    if question.slo_seconds is None:
        return None
    fleet, size, time, traffic = answer.fleet, answer.fleet.size, answer.time, question.traffic
    if not size.is_scaled:
        left = size.needed_replicas // size.pools
        arrivals = peak_arrivals(per_pool(traffic, size.pools), max(CHECK_ARRIVALS, 20 * left), seed)
        latencies = fixed_fleet_latencies(arrivals, time.high, left)[len(arrivals) // 10 :]
        return percentile(latencies, 0.95) / question.slo_seconds
    demand = Demand(traffic, time.seconds_per_clip, time.high, question.slo_seconds)
    layout = Layout(replicas_per_machine=fleet.deployment.workers_per_machine, pools=size.pools)
    start = Start.slowest(fleet.cold_start)
    return latency_again(demand, layout, start, size, seed) / question.slo_seconds


def find_unsupported(answer):
    """What the answer recommends and the table of capabilities does not contain."""
    deployment = answer.fleet.deployment
    if any(option.gpus_per_replica > 1 for option in answer.options) and not FILMGATE.can_split_clips:
        yield "an option splits a clip over GPUs"
    if deployment.machines != answer.fleet.size.instances:
        yield "the machines to deploy are not those of the fleet"
    if deployment.offload not in get_args(PipelineSettings.model_fields["offload"].annotation):
        yield f"offload level {deployment.offload} does not exist"
    unsupported = "fp8|adapter|GPUs per clip" + ("" if FILMGATE.can_scale_to_zero else "|scale to zero")
    if re.search(rf"^(Run|Use).*({unsupported})", answer.verdict):
        yield "the verdict recommends what Filmgate does not run"


def find_spot_errors(answer):
    """Where the machines that are billed, on spot and on demand, are not those of the chart's workers."""
    deployment, chart = answer.fleet.deployment, answer.fleet.deployment.chart
    spot = sum(part.instances for part in answer.cost.purchase if part.how == "spot")
    deployed = _machines_for(chart.spot_replicas, deployment)
    if deployed != spot:
        yield f"{spot} spot machines are billed, {deployed} deployed"
    if answer.fleet.size.is_scaled:
        return
    others = answer.fleet.size.instances - spot
    deployed = _machines_for(max(chart.min_replicas, chart.scheduled_replicas), deployment)
    if deployed != others:
        yield f"{others} machines that are not spot are billed, {deployed} deployed"


def _machines_for(replicas, deployment):
    """The machines for this many workers of each pool; only with `instance` does each pool have its own."""
    if deployment.tenancy == Tenancy.INSTANCE:
        return math.ceil(replicas / deployment.workers_per_machine) * deployment.pools
    return math.ceil(replicas * deployment.pools / deployment.workers_per_machine)


def problems(question, answer):
    cost, fleet, size = answer.cost, answer.fleet, answer.fleet.size
    yield from find_unsupported(answer)
    yield from find_bill_errors(answer)
    yield from find_spot_errors(answer)
    if not is_close(cost.usd_per_day / question.traffic.per_day, cost.usd_per_clip):
        yield "the cost of a clip is not that of the bill"
    figures = {
        "machines": f"{size.instances} x {fleet.machine}",
        "per month": usd(cost.usd_per_month),
        "per clip": usd(cost.usd_per_clip),
        "p95": seconds(size.latency_p95),
    }
    if fleet.pattern != Pattern.MANAGED:
        figures["worst p95"] = seconds(size.worst_p95)
    yield from find_report_differences(answer, figures)
    if answer.verdict.startswith("Run ") and f"{usd(cost.usd_per_month)} per month" not in answer.verdict:
        yield "the verdict states another monthly cost"


def harder(question):
    traffic, slo = question.traffic, question.slo_seconds
    yield "more clips", replace(question, traffic=traffic_of(traffic.per_day * 1.5, traffic.shape))
    yield "a tighter objective", replace(question, slo_seconds=slo * 0.8 if slo else 4000)
    yield "more spare machines", replace(question, spare_machines=2)
    yield "separate hardware", replace(question, tenants=6, tenancy=Tenancy.INSTANCE)
