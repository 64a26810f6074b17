"""The first sentence of an answer: what to do, or what would have to change."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.pattern import Choice, Pattern
from filmgate.planner.machines import allowed_regions, machines_for
from filmgate.planner.video.candidates import Candidate, VideoAsk, evaluate
from filmgate.planner.video.managed import Offer, cheapest

# Software that may bring a clip under its SLO, least intrusive first.
FASTER: dict[str, dict[str, Any]] = {
    "--compiled": {"mode": "compiled"},
    "--compiled --precision fp8": {"mode": "compiled", "precision": "fp8"},
}


def video_verdict(
    ask: VideoAsk, best: Candidate, choice: Choice, offers: Sequence[Offer], interval: tuple[float, float]
) -> str:
    """One sentence for a question that has an answer."""
    low, high = interval
    seconds = f"{brief(best.seconds)} s a clip ({brief(low)} to {brief(high)})"
    where = f"{best.machine.name}" + (f", {best.split} GPUs a clip" if best.split > 1 else "")
    per_clip = best.usd_per_clip(ask)
    rival = cheapest(offers)
    if choice.pattern is Pattern.MANAGED and rival:
        crossing = rival.break_even_clips_per_day
        later = f", less from {crossing:,.0f} clips a day" if crossing is not None else ""
        return (
            f"Buy from {rival.name} at ${rival.usd_per_clip:.2f} a clip: an own fleet on {where} costs "
            f"${per_clip:.2f} at this volume{later}.{_unproven(ask, rival)}"
        )
    if best.fleet is None or best.bill is None:
        price = f", ${per_clip:.3g} a clip when busy" if per_clip is not None else ""
        memory = best.trial.memory
        peak = f"peak {memory.peak_bytes / 2**30:.1f} GiB in {memory.peak_stage}"
        return f"{where}: {seconds}{price}, {peak}."
    fleet = best.fleet
    promise = f"p95 {brief(fleet.latency_p95)} s" + (
        f" of {ask.slo_seconds:g} allowed" if ask.slo_seconds else ""
    )
    count = f"{fleet.instances} x {where}"
    return (
        f"Run {count}, {choice.pattern}: {seconds}, {promise}, ${per_clip:.3g} a clip, "
        f"${best.bill.usd_per_month:,.0f} a month{_managed_tail(rival)}."
    )


def brief(value: float) -> str:
    """Three digits and no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _unproven(ask: VideoAsk, rival: Offer) -> str:
    """A price is no promise: an API that publishes no latency may miss the SLO."""
    if ask.slo_seconds is None or rival.typical_seconds is not None:
        return ""
    return f" It publishes no latency: measure it before promising {ask.slo_seconds:g} s."


def _managed_tail(rival: Offer | None) -> str:
    if rival is None:
        return ""
    crossing = rival.break_even_clips_per_day
    tail = f"; {rival.name} at ${rival.usd_per_clip:.2f} is dearer"
    if crossing is None:
        return tail
    return tail + (f" from {crossing:,.0f} clips a day" if crossing > 1 else " at any volume")


def impossible_video(
    ask: VideoAsk, catalog: Catalog, calibration: Calibration, rejected: Sequence[Rejected]
) -> str:
    """What would have to change, with the numbers."""
    away = [r for r in rejected if r.name == ask.region]
    if away:
        names = allowed_regions(catalog, ask.residency or "")
        return f"Not in {ask.region}: {away[0].reason}; regions that may: {names}."
    crowded = [r for r in rejected if r.unit == "clips/day"]
    if crowded:
        return (
            f"Too much for one fleet: {crowded[0].reason}. Spread the volume over several fleets or regions."
        )
    slow = [r for r in rejected if r.unit == "s" and r.number is not None]
    if slow and ask.slo_seconds is not None:
        return _too_slow(ask, catalog, calibration, min(slow, key=lambda r: r.number or math.inf))
    small = [r for r in rejected if r.unit == "GiB" and r.number is not None]
    if small:
        nearest = min(small, key=lambda r: (r.number or math.inf) - (r.limit or 0.0))
        advice = _smaller(ask, catalog, calibration)
        return f"Nothing fits: {nearest.name} comes nearest, but {nearest.reason}. {advice}"
    if not rejected:
        return f"No machine is known in {ask.region}; give another --region."
    return f"No machine is left: {rejected[0].name}: {rejected[0].reason}."


def _too_slow(ask: VideoAsk, catalog: Catalog, calibration: Calibration, nearest: Rejected) -> str:
    """The SLO is below the compute floor: how far, and what brings the floor down."""
    slo = ask.slo_seconds or 0.0
    best = nearest.number or math.inf
    advice = [f"allow {math.ceil(best)} s"]
    for flags, change in FASTER.items():
        if _is_possible(replace(ask, clips_per_day=None, **change), catalog, calibration):
            advice.append(f"run it with {flags}")
            break
    steps = _most_steps(ask, catalog, calibration)
    if steps:
        advice.append(f"take at most {steps} steps (a distilled model)")
    advice.append("ask for fewer frames or a smaller size")
    return (
        f"No machine makes this clip in {slo:g} s: the fastest, {nearest.name}, takes {best:.0f} s. "
        f"To change that, {', or '.join(advice)}."
    )


def _most_steps(ask: VideoAsk, catalog: Catalog, calibration: Calibration) -> int | None:
    """The most steps at which some machine meets the SLO."""
    low, high = 0, ask.clip.steps
    while high - low > 1:
        middle = (low + high) // 2
        fewer = replace(ask, clip=replace(ask.clip, steps=middle), clips_per_day=None)
        low, high = (middle, high) if _is_possible(fewer, catalog, calibration) else (low, middle)
    return low or None


def _smaller(ask: VideoAsk, catalog: Catalog, calibration: Calibration) -> str:
    """The longest clip of the same size that fits something."""
    step = ask.model.frame_step
    low, high = 0, (ask.clip.frames - 1) // step
    while high - low > 1:
        middle = (low + high) // 2
        fewer = replace(
            ask, clip=replace(ask.clip, frames=middle * step + 1), clips_per_day=None, slo_seconds=None
        )
        low, high = (middle, high) if _is_possible(fewer, catalog, calibration) else (low, middle)
    if low:
        return f"At this size {low * step + 1} frames would fit; else use a smaller size or --precision fp8."
    return "Use a smaller size, --precision fp8, or a smaller model."


def _is_possible(ask: VideoAsk, catalog: Catalog, calibration: Calibration) -> bool:
    machines, _ = machines_for(catalog, ask.region, gpu=ask.gpu, names=ask.instances)
    return any(isinstance(evaluate(ask, machine, calibration), Candidate) for machine in machines)
