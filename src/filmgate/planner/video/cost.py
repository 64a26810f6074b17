"""The cost of a video plan: bill, purchase mix, managed quotes, savings, volumes, regions and plots."""

from collections.abc import Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Curve, Plots
from filmgate.planner.fleet.answer import ClipQuote, CostAnswer, CostLever, VolumeCost
from filmgate.planner.fleet.money import DAYS_PER_MONTH, Bill
from filmgate.planner.fleet.purchase import warnings, ways_to_buy
from filmgate.planner.fleet.queueing import wait_percentile
from filmgate.planner.machines import prices_by_region
from filmgate.planner.video.candidates import Candidate, daily_cost, order_of
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.splits import machine_time

VOLUME_FACTORS = (1, 2, 10)
VOLUME_ROUNDING = 1e-9


def cost_answer(
    question: VideoQuestion,
    best: Candidate,
    catalog: Catalog,
    calibration: Calibration,
    quotes: Sequence[ClipQuote],
) -> CostAnswer:
    per_clip, bill, price = best.usd_per_clip(question), best.bill, best.machine.price
    order = order_of(question, best.machine, best.split, best.fleet) if best.fleet else None
    return CostAnswer(
        machine=best.machine.name,
        usd_per_hour=best.machine.usd_per_hour,
        managed=tuple(quotes),
        levers=tuple(_levers(question, best, calibration)),
        regions=prices_by_region(best.machine, catalog, question.residency, _monthly_hours(bill)),
        usd_per_clip=per_clip,
        usd_per_busy_clip=best.usd_per_busy_clip,
        usd_per_second_of_video=per_clip / question.clip.seconds if per_clip is not None else None,
        usd_per_day=bill.usd_per_day if bill else None,
        usd_per_month=bill.usd_per_month if bill else None,
        idle_usd_per_day=bill.idle_usd_per_day if bill else None,
        warm_usd_per_day=bill.warm_usd_per_day if bill else None,
        by_volume=tuple(_by_volume(question, best)) if bill else (),
        purchase=bill.purchases if bill else (),
        ways_to_buy=ways_to_buy(order, question.terms) if order else (),
        warnings=warnings(order, question.terms) if order else (),
        spot_range=(price.spot_min, price.spot_max) if best.fleet and price else None,
    )


def _monthly_hours(bill: Bill | None) -> float | None:
    return bill.instance_hours * DAYS_PER_MONTH if bill else None


def _levers(question: VideoQuestion, best: Candidate, calibration: Calibration) -> list[CostLever]:
    """What each change saves on this machine."""
    before = best.seconds
    changes: list[tuple[str, VideoQuestion, str]] = []
    if question.precision == "bf16" and best.machine.gpu.fp8_tflops:
        note = "not with Filmgate: the runtime has no quantised weights"
        changes.append(("denoiser in fp8", replace(question, precision="fp8"), note))
    if question.software().mode == "eager":
        note = "set pipeline.compile to on; not measured for this model"
        changes.append(("compiled operators", replace(question, mode="compiled"), note))
    found = []
    for name, changed, note in changes:
        placement = replace(best.split.fit.placement, weights=changed.precision)
        time = machine_time(changed, best.machine, best.split.gpus, placement, calibration)
        found.append(CostLever(name, 1 - time.seconds / before, note, time.seconds))
    memory_share = sum(t.memory for t in best.split.time.stages if t.stage == "denoise") / before
    note = (
        f"one clip already fills the GPU: only {memory_share:.0%} of the time is memory traffic, "
        "which grows with the batch"
    )
    return [*found, CostLever("batching clips", 0.0, note, before)]


def _by_volume(question: VideoQuestion, best: Candidate) -> list[VolumeCost]:
    traffic = question.traffic()
    volume = traffic.per_day if traffic else 0.0
    rows = []
    for factor in VOLUME_FACTORS:
        cost = _cost_at(question, best, volume * factor)
        per_clip = cost / (volume * factor) if cost and volume else None
        per_month = cost * DAYS_PER_MONTH if cost is not None else None
        rows.append(VolumeCost(factor, volume * factor, cost, per_month, per_clip))
    return rows


def video_plots(question: VideoQuestion, best: Candidate, quotes: Sequence[ClipQuote]) -> Plots:
    """Cost against volume, and latency against the load of the chosen fleet."""
    traffic = question.traffic()
    if best.fleet is None or traffic is None or best.machine.usd_per_hour is None:
        return Plots()
    volume = max(traffic.per_day, 1.0)
    volumes = [volume * 10 ** (i / 16 - 1.25) for i in range(41)]
    own = tuple((v, cost / v) for v in volumes if (cost := _cost_at(question, best, v)) is not None)
    lines = [Curve(f"own fleet, {best.machine.name}", own)]
    crossings = []
    for quote in quotes:
        if not quote.is_available:
            continue
        usd, crossing = quote.usd_per_clip, quote.break_even_clips_per_day
        lines.append(Curve(quote.name, ((volumes[0], usd), (volumes[-1], usd))))
        if crossing is not None:
            crossings.append((quote.name, crossing))
    return Plots(
        cost=tuple(lines),
        break_even=tuple(crossings),
        latency=_latency_curves(question, best),
        slo_seconds=question.slo_seconds,
        volume=traffic.per_day,
    )


def _cost_at(question: VideoQuestion, best: Candidate, clips_per_day: float) -> float | None:
    """USD per day: the bill at the requested volume, an estimate by formulas at others.

    The estimate of a fleet that scales is multiplied by what the simulation says at the requested volume.
    """
    traffic = question.traffic()
    if best.bill and traffic and abs(clips_per_day - traffic.per_day) < VOLUME_ROUNDING * clips_per_day:
        return best.bill.usd_per_day
    estimate = daily_cost(question, best, clips_per_day)
    if estimate is None or best.bill is None or traffic is None or not (best.fleet and best.fleet.is_scaled):
        return estimate
    here = daily_cost(question, best, traffic.per_day)
    return estimate * best.bill.usd_per_day / here if here else estimate


def _latency_curves(question: VideoQuestion, best: Candidate) -> tuple[Curve, ...]:
    traffic, fleet = question.traffic(), best.fleet
    if traffic is None or fleet is None or fleet.is_scaled:
        return ()
    curves = []
    for name, share in (("p95", 0.95), ("p99", 0.99)):
        points = []
        for i in range(1, 39):
            load = i / 40
            rate = load * fleet.replicas / best.seconds
            wait = wait_percentile(rate, best.seconds, fleet.replicas, share, traffic.batch)
            points.append((load, best.seconds + wait))
        curves.append(Curve(name, tuple(points)))
    return tuple(curves)
