"""The cost of a video plan: bill, purchase mix, managed quotes, savings, volumes, regions and plots."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.managed import VideoApi
from filmgate.planner.answer import Curve, Plots
from filmgate.planner.fleet.answer import ClipQuote, CostAnswer, CostLever, VolumeCost
from filmgate.planner.fleet.money import (
    DAYS_PER_MONTH,
    DailyCost,
    break_even,
    exact_at,
    purchase_options,
    warnings,
)
from filmgate.planner.fleet.queueing import wait_percentile
from filmgate.planner.machines import prices_by_region
from filmgate.planner.video.candidates import Candidate, daily_cost
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.splits import machine_time

VOLUME_FACTORS = (1, 2, 10)


def cost_answer(
    best: Candidate, catalog: Catalog, calibration: Calibration, quotes: Sequence[ClipQuote]
) -> CostAnswer:
    question, order, bill = best.question, best.order, best.bill
    per_clip = best.usd_per_unit
    monthly_hours = order.on_demand().instance_hours * DAYS_PER_MONTH if order else None
    return CostAnswer(
        machine=best.machine.name,
        usd_per_hour=best.machine.usd_per_hour,
        managed=tuple(quotes),
        levers=tuple(_levers(best, calibration)),
        regions=prices_by_region(best.machine, catalog, question.residency, monthly_hours),
        usd_per_clip=per_clip,
        usd_per_second_of_video=per_clip / question.clip.seconds if per_clip is not None else None,
        usd_per_day=bill.usd_per_day if bill else None,
        usd_per_month=bill.usd_per_month if bill else None,
        idle_usd_per_day=bill.idle_usd_per_day if bill else None,
        warm_usd_per_day=bill.warm_usd_per_day if bill else None,
        by_volume=tuple(_by_volume(best)) if bill else (),
        purchase=bill.purchases if bill else (),
        purchase_options=purchase_options(order, question.terms) if order else (),
        warnings=warnings(order, question.terms) if order else (),
    )


def _levers(best: Candidate, calibration: Calibration) -> list[CostLever]:
    """What each change saves on this machine."""
    question, before = best.question, best.seconds
    changes = []
    if question.precision == "bf16" and best.machine.gpu.fp8_tflops:
        note = "not with Filmgate: it stores weights in 8 bits (pipeline.weights), but computes in bf16"
        changes.append(("denoiser in fp8", replace(question, precision="fp8"), note))
    if question.software().fused is not None:
        note = "install the extra flash, or build the image with it (WORKER_EXTRAS)"
        changes.append(("flash-attn-4", replace(question, has_flash=True), note))
    elif question.software().mode == "eager":
        note = "set pipeline.compile to on; not measured for this model"
        changes.append(("compiled operators", replace(question, mode="compiled"), note))
    found = []
    for name, changed, note in changes:
        placement = replace(best.split.fit.placement, weights=changed.precision)
        time = machine_time(changed, best.machine, best.split.gpus, placement, calibration)
        if time.seconds < before:
            found.append(CostLever(name, 1 - time.seconds / before, note, time.seconds))
    memory_share = sum(t.memory for t in best.split.time.stages if t.stage == "denoise") / before
    note = (
        f"one clip already fills the GPU: only {memory_share:.0%} of the time is memory traffic, "
        "which grows with the batch"
    )
    return [*found, CostLever("batching clips", 0.0, note, before)]


def _by_volume(best: Candidate) -> list[VolumeCost]:
    traffic, cost_at = best.question.traffic, daily_cost_of(best)
    volume = traffic.per_day if traffic else 0.0
    rows = []
    for factor in VOLUME_FACTORS:
        cost = cost_at(volume * factor)
        per_clip = cost / (volume * factor) if cost and volume else None
        rows.append(VolumeCost(factor, volume * factor, cost, per_clip))
    return rows


def video_plots(best: Candidate, quotes: Sequence[ClipQuote]) -> Plots:
    """Cost against volume, and latency against the load of the chosen fleet."""
    traffic = best.question.traffic
    if best.fleet is None or traffic is None or best.machine.usd_per_hour is None:
        return Plots()
    volume = max(traffic.per_day, 1.0)
    volumes = [volume * 10 ** (i / 16 - 1.25) for i in range(41)]
    cost_at = daily_cost_of(best)
    own = tuple((v, cost / v) for v in volumes if (cost := cost_at(v)) is not None)
    lines = [Curve(f"own fleet, {best.machine.name}", own)]
    crossings = []
    for quote in quotes:
        if not quote.is_available:
            continue
        usd, crossing = quote.usd_per_clip, quote.break_even_clips_per_day
        lines.append(Curve(quote.name, ((volumes[0], usd), (volumes[-1], usd))))
        if crossing is not None:
            crossings.append((quote.name, math.ceil(crossing)))
    return Plots(
        cost=tuple(lines),
        break_even=tuple(crossings),
        latency=_latency_curves(best),
        slo_seconds=best.question.slo_seconds,
        volume=traffic.per_day,
    )


def daily_cost_of(best: Candidate) -> DailyCost:
    """USD per day by clips per day: the bill at the requested volume, an estimate by formulas at others.

    The estimate of a fleet that scales is multiplied by what the simulation says at the requested volume.
    """
    traffic, bill = best.question.traffic, best.bill
    if traffic is None or bill is None:
        return cache(lambda clips: daily_cost(best, clips))
    here = daily_cost(best, traffic.per_day) if best.fleet and best.fleet.is_scaled else None
    factor = bill.usd_per_day / here if here else 1.0

    def estimate(clips: float) -> float | None:
        usd = daily_cost(best, clips)
        return usd * factor if usd is not None else None

    return exact_at(traffic.per_day, bill.usd_per_day, estimate)


def _latency_curves(best: Candidate) -> tuple[Curve, ...]:
    traffic, fleet = best.question.traffic, best.fleet
    if traffic is None or fleet is None or fleet.is_scaled:
        return ()
    curves, replicas = [], fleet.replicas // fleet.pools  # each tenant on separate hardware has its own queue
    for name, share in (("p95", 0.95), ("p99", 0.99)):
        points = []
        for i in range(1, 39):
            load = i / 40
            wait = wait_percentile(
                load * replicas / best.seconds, best.seconds, replicas, share, traffic.batch
            )
            points.append((load, best.seconds + wait))
        curves.append(Curve(name, tuple(points)))
    return tuple(curves)


def quote_managed(question: VideoQuestion, catalog: Catalog, best: Candidate | None) -> list[ClipQuote]:
    """Every API in the catalog. Retired ones are included because older advice compares with them."""
    cost = daily_cost_of(best) if best and best.machine.price else None
    return [_quote(question, catalog, api, cost) for api in catalog.video_apis.values()]


def _quote(question: VideoQuestion, catalog: Catalog, api: VideoApi, cost: DailyCost | None) -> ClipQuote:
    usd = api.usd_per_clip(question.clip.seconds)
    asked = question.traffic.per_day if question.traffic else None
    obstacle = _obstacle(question, catalog, api)
    return ClipQuote(
        id=api.id,
        name=api.name,
        state=api.state,
        is_available=api.is_available and obstacle is None,
        usd_per_clip=usd,
        break_even_clips_per_day=break_even(cost, usd, asked) if cost else None,
        typical_seconds=api.typical_seconds,
        note="; ".join(text for text in (obstacle, api.note) if text),
    )


def _obstacle(question: VideoQuestion, catalog: Catalog, api: VideoApi) -> str | None:
    """Why an active API cannot serve the question, or None."""
    allowed = question.residency or catalog.region(question.region).jurisdiction
    places = {catalog.regions[name].jurisdiction for name in api.regions if name in catalog.regions}
    slo, height = question.slo_seconds, question.clip.size.height
    if question.gpu is None and allowed not in places:
        return f"offered in {', '.join(sorted(places)) or 'no known region'}, not in {allowed}"
    if height > api.max_height:
        return f"renders at most {api.max_height} lines, the clip has {height}"
    if slo is not None and (api.typical_seconds or 0.0) > slo:
        return f"takes {api.typical_seconds:g} s, the SLO is {slo:g} s"
    return None
