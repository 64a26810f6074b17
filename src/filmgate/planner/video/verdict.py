"""The first sentence of a video answer: what to do, or what would have to change."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB
from filmgate.planner.answer import Rejected, closest
from filmgate.planner.fleet.answer import ClipQuote, tight
from filmgate.planner.fleet.pattern import Choice, Pattern
from filmgate.planner.machines import machines_for, no_machine, not_in_region
from filmgate.planner.video.candidates import Candidate, evaluate
from filmgate.planner.video.clip import frame_limits
from filmgate.planner.video.cost import cheapest, quote_managed
from filmgate.planner.video.question import VideoQuestion


def video_verdict(best: Candidate, choice: Choice, quotes: Sequence[ClipQuote]) -> str:
    """One sentence for a question that has an answer."""
    question, gpus = best.question, best.split.gpus
    seconds = f"{brief(best.seconds)} s per clip ({brief(best.split.low)} to {brief(best.split.high)})"
    where = f"{best.machine.name}" + (f", {gpus} GPUs per clip" if gpus > 1 else "")
    per_clip = best.usd_per_clip
    rival = cheapest(quotes)
    if choice.pattern is Pattern.MANAGED and rival:
        crossing = rival.break_even_clips_per_day
        later = f", and less than the API from {crossing:,.0f} clips per day" if crossing is not None else ""
        return (
            f"Use {rival.name} at ${rival.usd_per_clip:.2f} per clip: your own fleet on {where} costs "
            f"${per_clip:.2f} per clip at this volume{later}.{_unknown_latency(question, rival)}"
        )
    if best.fleet is None or best.bill is None:
        price = f", ${per_clip:.3g} per clip when busy" if per_clip is not None else ""
        memory = best.split.fit.memory
        peak = f"peak {memory.peak_bytes / GIB:.1f} GiB in {memory.peak_stage}"
        return f"{where}: {seconds}{price}, {peak}."
    fleet = best.fleet
    limit = f" (limit {question.slo_seconds:g} s)" if question.slo_seconds else ""
    worst = brief(fleet.worst_p95 or fleet.latency_p95)
    lost = f" with {fleet.spare_instances} lost" if fleet.spare_instances else ""
    latency = f"p95 {brief(fleet.latency_p95)} s, at most {worst} s{lost}{limit}"
    cost = f"${per_clip:.3g} per clip, ${best.bill.usd_per_month:,.0f} per month"
    tenants = f", {fleet.pools} tenants on separate hardware" if fleet.pools > 1 else ""
    count, hours = f"{fleet.instances}", ""
    if fleet.is_scaled:
        count, hours = f"0 to {fleet.instances}", f" ({fleet.up_hours:.1f} h a day up)"
    machines = f"Run {count} x {where}, {choice.pattern}{hours}{tenants}"
    return f"{machines}: {seconds}, {latency}, {cost}{_compared(rival)}.{tight(fleet, 'clips')}"


def brief(value: float) -> str:
    """Three digits without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _unknown_latency(question: VideoQuestion, rival: ClipQuote) -> str:
    if question.slo_seconds is None or rival.typical_seconds is not None:
        return ""
    return f" The API publishes no latency: measure it before you promise {question.slo_seconds:g} s."


def _compared(rival: ClipQuote | None) -> str:
    if rival is None:
        return ""
    crossing = rival.break_even_clips_per_day
    text = f"; {rival.name} at ${rival.usd_per_clip:.2f} is more expensive"
    if crossing is None:
        return text
    return text + (f" from {crossing:,.0f} clips per day" if crossing > 1 else " at any volume")


def impossible_video(
    question: VideoQuestion, catalog: Catalog, calibration: Calibration, rejected: Sequence[Rejected]
) -> str:
    """What would have to change, with the figures."""
    elsewhere = next((r for r in rejected if r.name == question.region), None)
    if elsewhere:
        return not_in_region(catalog, elsewhere, question.residency or "")
    crowded = next((r for r in rejected if r.unit == "clips/day"), None)
    if crowded:
        return f"Too much for one fleet: {crowded.reason}. Use several fleets or regions."
    slow = [r for r in rejected if r.unit == "s" and r.number is not None]
    if slow and question.slo_seconds is not None:
        return _too_slow(question, catalog, calibration, min(slow, key=lambda r: r.number or math.inf))
    small = closest(rejected, "GiB")
    if small:
        advice = _shorter(question, catalog, calibration)
        return f"Nothing fits: {small.name} is closest, but {small.reason}. {advice}"
    return no_machine(rejected, question.region)


def _too_slow(question: VideoQuestion, catalog: Catalog, calibration: Calibration, fastest: Rejected) -> str:
    """How far the SLO is below the fastest time, and what would make a clip faster."""
    best = fastest.number or math.inf  # the upper end of the interval
    advice = [f"allow {math.ceil(best)} s"]
    steps = _max_steps(question, catalog, calibration)
    if steps:
        advice.append(f"use at most {steps} steps (a distilled model)")
    advice.append("use fewer frames or a smaller size")
    rival = cheapest(quote_managed(question, catalog, None))
    if rival:
        advice.append(f"use {rival.name} at ${rival.usd_per_clip:.2f} per clip")
    return (
        f"No machine renders this clip in {question.slo_seconds or 0.0:g} s: "
        f"the fastest, {fastest.name}, takes up to {best:.0f} s. Options: {'; '.join(advice)}."
    )


def _max_steps(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> int | None:
    """The most steps at which some machine meets the SLO."""

    def is_possible(steps: int) -> bool:
        fewer = replace(question, clip=replace(question.clip, steps=steps), clips_per_day=None)
        return _is_possible(fewer, catalog, calibration)

    return _largest(question.clip.steps, is_possible) or None


def _shorter(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> str:
    """The longest clip of the same size that fits some machine."""
    limits = frame_limits(question.model, question.clip.size)

    def is_possible(count: int) -> bool:
        clip = replace(question.clip, frames=limits.offset + limits.step * count)
        fewer = replace(question, clip=clip, clips_per_day=None, slo_seconds=None)
        return _is_possible(fewer, catalog, calibration)

    count = _largest((question.clip.frames - limits.offset) // limits.step, is_possible)
    if not count:
        return "Use a smaller size or a smaller model."
    return f"At this size {limits.offset + limits.step * count} frames would fit; or use a smaller size."


def _largest(too_many: int, is_possible: Callable[[int], bool]) -> int:
    """The largest number below `too_many` that is possible; 0 if there is none."""
    low, high = 0, too_many
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_possible(middle) else (low, middle)
    return low


def _is_possible(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> bool:
    machines, _ = machines_for(catalog, question.region, gpu=question.gpu, names=question.instances)
    return any(isinstance(evaluate(question, machine, calibration), Candidate) for machine in machines)
