"""The verdict of a video answer: what to do, or what would have to change."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB
from filmgate.planner.answer import Rejected, closest
from filmgate.planner.fleet.answer import ClipQuote, cheapest, tight
from filmgate.planner.fleet.pattern import Choice, Pattern
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.machines import machines_for, no_machine, not_in_region
from filmgate.planner.report.numbers import counted, digits, usd
from filmgate.planner.video.candidates import Candidate, evaluate
from filmgate.planner.video.clip import frame_limits
from filmgate.planner.video.cost import quote_managed
from filmgate.planner.video.question import VideoQuestion


def video_verdict(best: Candidate, choice: Choice, quotes: Sequence[ClipQuote]) -> str:
    """The sentences for a question that has an answer."""
    fleet, per_clip, rival = best.fleet, best.usd_per_unit, cheapest(quotes)
    where = best.machine.name + (f", {best.split.gpus} GPUs per clip" if best.split.gpus > 1 else "")
    if choice.pattern is Pattern.MANAGED and rival:
        return _managed(best.question, where, per_clip or 0.0, rival)
    time = f"A clip takes {digits(best.seconds)} s ({digits(best.split.low)} to {digits(best.split.high)})"
    if fleet is None:
        memory = best.split.fit.memory
        price = f" It costs {usd(per_clip)} on a machine that is always busy." if per_clip is not None else ""
        peak = f"{memory.peak_bytes / GIB:.1f} GiB at its peak, in {memory.peak_stage}"
        return f"On {where}, a{time[1:]} and needs {peak}.{price}"
    count, hours = f"{fleet.instances}", ""
    if fleet.is_scaled:
        whose = " of each tenant" if fleet.pools > 1 else ""
        count = f"0 to {fleet.instances}"
        hours = f" (at least one machine{whose} runs for {fleet.up_hours:.1f} hours per day)"
    tenants = f", {fleet.pools} tenants on separate hardware" if fleet.pools > 1 else ""
    cost = ""
    if per_clip is not None and best.bill is not None:
        cost = f" It costs {usd(per_clip)} per clip, {usd(best.bill.usd_per_month)} per month."
    return (
        f"Run {count} x {where}, {choice.pattern}{hours}{tenants}. {time}. {_latency(best.question, fleet)}"
        f"{cost}{_compared(rival) if cost else ''}{tight(fleet, 'clips')}"
    )


def _managed(question: VideoQuestion, where: str, own: float, rival: ClipQuote) -> str:
    crossing = rival.break_even_clips_per_day
    later = f"; it is cheaper from {math.ceil(crossing):,} clips per day" if crossing is not None else ""
    unknown = ""
    if question.slo_seconds is not None and rival.typical_seconds is None:
        unknown = f" The API publishes no latency: measure it before you promise {question.slo_seconds:g} s."
    return (
        f"Use {rival.name} at {usd(rival.usd_per_clip)} per clip. Your own fleet on {where} would cost "
        f"{usd(own)} per clip{' at this volume' if question.traffic else ''}{later}.{unknown}"
    )


def _latency(question: VideoQuestion, fleet: Fleet) -> str:
    lost = f" and with {counted(fleet.spare_instances, 'machine')} lost" if fleet.spare_instances else ""
    limit = f" (limit {question.slo_seconds:g} s)" if question.slo_seconds else ""
    worst = digits(fleet.worst_p95 or fleet.latency_p95)
    return (
        f"p95 latency is {digits(fleet.latency_p95)} s; at the upper end of the interval{lost} it is "
        f"{worst} s{limit}."
    )


def _compared(rival: ClipQuote | None) -> str:
    if rival is None or rival.break_even_clips_per_day is None:
        return ""
    crossing = rival.break_even_clips_per_day
    when = f"from {math.ceil(crossing):,} clips per day" if crossing > 1 else "at any volume"
    return f" This is cheaper than {rival.name} ({usd(rival.usd_per_clip)} per clip) {when}."


def impossible_video(
    question: VideoQuestion, catalog: Catalog, calibration: Calibration, rejected: Sequence[Rejected]
) -> str:
    """What would have to change, with the figures."""
    elsewhere = next((r for r in rejected if r.name == question.region), None)
    if elsewhere:
        return not_in_region(catalog, elsewhere, question.residency)
    crowded = next((r for r in rejected if r.unit == "clips/day"), None)
    if crowded:
        return f"Too much for one fleet: {crowded.reason}. Use several fleets or regions."
    slow = [r for r in rejected if r.unit == "s" and r.number is not None]
    if slow and question.slo_seconds is not None:
        return _too_slow(question, catalog, calibration, min(slow, key=lambda r: r.number or math.inf))
    small = closest(rejected, "GiB")
    if small:
        advice = _shorter(question, catalog, calibration)
        return f"Nothing fits. {small.name} is closest, but {small.reason}. {advice}"
    return no_machine(rejected, question.region)


def _too_slow(question: VideoQuestion, catalog: Catalog, calibration: Calibration, fastest: Rejected) -> str:
    """How far the SLO is below the fastest time, and what would make a clip faster."""
    best = fastest.number or math.inf  # the upper end of the interval
    advice = [f"allow {math.ceil(best):,} s"]
    steps = _max_steps(question, catalog, calibration)
    if steps:
        advice.append(f"use at most {steps} steps (a distilled model)")
    advice.append("use fewer frames or a smaller size")
    rival = cheapest(quote_managed(question, catalog, None))
    if rival:
        latency = "" if rival.typical_seconds else ", which publishes no latency: measure it first"
        advice.append(f"use {rival.name} at {usd(rival.usd_per_clip)} per clip{latency}")
    return (
        f"No machine renders this clip in {question.slo_seconds or 0.0:g} s: "
        f"the fastest, {fastest.name}, takes up to {digits(best)} s. Options: {'; '.join(advice)}."
    )


def _max_steps(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> int | None:
    """The most steps at which some machine meets the SLO."""

    def is_possible(steps: int) -> bool:
        fewer = replace(question, clip=replace(question.clip, steps=steps), traffic=None)
        return _is_possible(fewer, catalog, calibration)

    return _largest(question.clip.steps, is_possible) or None


def _shorter(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> str:
    """The longest clip of the same size that fits some machine."""
    limits = frame_limits(question.model, question.clip.size)

    def is_possible(count: int) -> bool:
        clip = replace(question.clip, frames=limits.offset + limits.step * count)
        fewer = replace(question, clip=clip, traffic=None, slo_seconds=None)
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
