"""Answers a video question: ranks the machines and describes the best one."""

import math
from collections.abc import Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.jobs import Stage
from filmgate.models.quality import FULL
from filmgate.planner.answer import (
    Answer,
    Kind,
    MemoryAnswer,
    MemoryLever,
    Option,
    Rejected,
    StageAnswer,
    TimeAnswer,
    Unit,
    dated_source,
)
from filmgate.planner.fleet.answer import ClipQuote, cheapest
from filmgate.planner.fleet.pattern import Choice, Pattern
from filmgate.planner.fleet.sizing import MAX_UTILISATION
from filmgate.planner.fleet.starts import START_ASSUMPTIONS
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.intervals import video_spread, widening
from filmgate.planner.machines import (
    Machine,
    check_residency,
    machine_sources,
    machines_for,
    prices_of,
    unpriced_region,
)
from filmgate.planner.report.numbers import digits, usd
from filmgate.planner.video.candidates import Candidate, confirmed_candidate, decide, evaluate
from filmgate.planner.video.cost import cost_answer, quote_managed, video_plots
from filmgate.planner.video.fleet import video_fleet
from filmgate.planner.video.memory import budget, placement_changes
from filmgate.planner.video.plan_b import not_with_filmgate, plan_b
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.splits import machine_time
from filmgate.planner.video.verdict import impossible_video, video_verdict
from filmgate.planner.video.work import token_count

ASSUMPTIONS = (
    *START_ASSUMPTIONS,
    "business traffic arrives within 10 hours, and its busiest hour has 1.5 times the average rate",
    "bursty traffic arrives in batches of 4 on average",
    f"a fleet is at most {MAX_UTILISATION:.0%} busy in the busiest hour, at the upper end of the interval",
)

TENANCY = {
    Tenancy.SHARED: "on shared GPUs",
    Tenancy.GPU: "on separate GPUs",
    Tenancy.INSTANCE: "on separate instances",
}


def plan_video(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> Answer:
    machines, candidates, rejected = ranked(question, catalog, calibration)
    candidates[:1] = [confirmed_candidate(best) for best in candidates[:1]]
    blocked = question.unsupported()
    unpriced = "" if question.gpu else unpriced_region(catalog, question.region)
    interrupted = (
        f"spot machines are interrupted at a rate of {question.terms.interruptions_per_day:g} per day"
    )
    assumptions = (*ASSUMPTIONS, f"{interrupted} (no rate is published per instance type)")
    answer = Answer(
        question=describe(question),
        kind=Kind.VIDEO,
        verdict="",
        is_possible=bool(candidates) and not blocked,
        options=tuple(video_option(c, i) for i, c in enumerate(candidates, start=1)),
        rejected=rejected,
        sources=_sources(question, catalog, calibration, machines, candidates),
        assumptions=(*assumptions, unpriced.rstrip(".")) if unpriced else assumptions,
    )
    if not candidates:
        return replace(answer, verdict=impossible_video(question, catalog, calibration, rejected))
    best = candidates[0]
    quotes = quote_managed(question, catalog, best)
    choice = _choose(best, quotes)
    verdict = video_verdict(best, choice, quotes)
    if blocked:
        verdict = f"Not with Filmgate: {'; '.join(blocked)}. With other software: {verdict}"
    others = not_with_filmgate(best, calibration)
    return replace(
        answer,
        verdict=f"{verdict} {unpriced}".strip(),
        memory=_memory(best, calibration),
        time=_time(best, calibration),
        fleet=video_fleet(best, choice, others),
        cost=cost_answer(best, catalog, calibration, quotes),
        plan_b=plan_b(candidates, choice, quotes, catalog, calibration),
        plots=video_plots(best, quotes),
    )


def ranked(
    question: VideoQuestion, catalog: Catalog, calibration: Calibration
) -> tuple[list[Machine], list[Candidate], tuple[Rejected, ...]]:
    """The machines, the candidates among them, cheapest first, and the rejections."""
    elsewhere = check_residency(catalog, question.region, question.residency)
    machines, unusable = machines_for(catalog, question.region, gpu=question.gpu, names=question.instances)
    outcomes = [] if elsewhere else [evaluate(question, machine, calibration) for machine in machines]
    candidates, too_many = decide([o for o in outcomes if isinstance(o, Candidate)])
    rejected = [o for o in outcomes if isinstance(o, Rejected)]
    return machines, candidates, (*elsewhere, *rejected, *too_many, *unusable)


def _choose(best: Candidate, quotes: Sequence[ClipQuote]) -> Choice:
    """The managed API where it is cheaper than the best fleet, otherwise the way that fleet runs."""
    own, rival = best.usd_per_unit, cheapest(quotes)
    reasons = []
    if own is not None and rival is not None:
        reasons.append(
            f"a clip costs {usd(own)} on your own fleet and {usd(rival.usd_per_clip)} at a managed API"
        )
        if rival.usd_per_clip < own:
            return Choice(Pattern.MANAGED, tuple(reasons))
    if best.fleet is None:
        reasons.append("no volume is given, so the cost is that of a machine that is always busy")
        return Choice(Pattern.WARM, tuple(reasons))
    why = {
        Pattern.WARM: "clips arrive all day, so every machine runs all day",
        Pattern.SCHEDULED: "no clips arrive outside the busy hours, so most machines are stopped then",
        Pattern.QUEUE: _why_scaled(best),
        Pattern.AUTOSCALED: _why_scaled(best),
    }
    reasons.append(why[best.pattern])
    if (adapters := best.question.adapters) > 1:
        reasons.append(
            f"the {adapters} adapters share one fleet: a worker adds each to the weights of the model"
        )
    return Choice(best.pattern, tuple(reasons))


def _why_scaled(best: Candidate) -> str:
    fleet = best.fleet
    if fleet is None or fleet.machine_hours is None:
        return ""
    at_zero = 24 - fleet.up_hours
    none = f", and none for {at_zero:.1f} hours per day" if at_zero >= 0.05 else ""
    in_time = ", and these also meet the SLO" if best.question.slo_seconds is not None else ""
    return (
        f"{digits(fleet.machine_hours / 24)} machines run on average{none}; {fleet.cold_share:.0%} of the "
        f"clips wait for a start{in_time}"
    )


def describe(question: VideoQuestion) -> str:
    clip = question.clip
    length = f"{clip.frames} frames ({clip.seconds:.1f} s)"
    parts = [f"{question.model.name}, {clip.size}, {length}, {clip.steps} steps"]
    if clip.quality != FULL:
        parts.append(f"quality {clip.quality}")
    if (traffic := question.traffic) is not None and traffic.given:
        parts.append(f"{len(traffic.given)} recorded arrivals")
    elif traffic is not None:
        parts.append(f"{digits(traffic.per_day)} clips per day, {traffic.shape}")
    if question.slo_seconds is not None:
        parts.append(f"p95 within {question.slo_seconds:g} s")
    if question.tenants > 1:
        parts.append(f"{question.tenants} tenants {TENANCY[question.tenancy]}")
    if question.adapters > 1:
        parts.append(f"{question.adapters} LoRA adapters")
    if question.residency:
        parts.append(f"data stays in {question.residency}")
    parts.append(f"on {question.gpu.name}" if question.gpu else f"in {question.region}")
    return "; ".join(parts)


def _memory(best: Candidate, calibration: Calibration) -> MemoryAnswer:
    found = best.split.fit.memory
    return MemoryAnswer(
        lines=found.charged_lines(),
        peak_bytes=found.peak_bytes,
        peak_stage=found.peak_stage,
        capacity_bytes=float(best.machine.gpu.memory_bytes),
        safety_factor=found.safety_factor,
        levers=tuple(_memory_levers(best, calibration)),
    )


def _memory_levers(best: Candidate, calibration: Calibration) -> list[MemoryLever]:
    """Each change with the time it adds, where that is known."""
    question, model, clip = best.question, best.question.model, best.question.clip
    base = replace(best.split.fit.placement, offload="none", is_tiled=False)
    before = machine_time(question, best.machine, best.split.gpus, base, calibration)
    found = []
    for change in placement_changes(model, clip, base, question.safety_factor):
        added = None
        if change.placement.weights == base.weights and change.placement.text_weights == base.text_weights:
            after = machine_time(question, best.machine, best.split.gpus, change.placement, calibration)
            added = after.seconds - before.seconds
        found.append(MemoryLever(change.name, change.memory.peak_bytes, change.memory.peak_stage, added))
    masks = model.denoiser.mask_bytes_per_token_pair * token_count(model, clip) ** 2
    if masks:
        name = "native attention backend, which builds masks; use a flash or varlen backend instead"
        plain = budget(model, clip, base, question.safety_factor)
        peak = max(
            (plain.peak_bytes, plain.peak_stage), (plain.stage_bytes(Stage.DENOISE) + masks, Stage.DENOISE)
        )
        found.append(MemoryLever(name, *peak, None))
    return found


def _time(best: Candidate, calibration: Calibration) -> TimeAnswer:
    half, is_extrapolated = video_spread(best.machine.gpu, calibration)
    note = f"interval: {math.expm1(half):.0%}, from runs that the calibration did not use"
    if is_extrapolated:
        note += f"; wider because {widening(best.machine.gpu)}"
    return TimeAnswer(
        seconds_per_clip=best.seconds,
        low=best.split.low,
        high=best.split.high,
        stages=tuple(
            StageAnswer(t.stage, t.seconds, t.compute, t.memory, t.interconnect, t.bound.value)
            for t in best.split.time.stages
        ),
        bound=best.split.time.bound.value,
        is_extrapolated=is_extrapolated,
        note=note,
    )


def video_option(candidate: Candidate, rank: int) -> Option:
    fleet, split = candidate.fleet, candidate.split
    return Option(
        rank=rank,
        name=candidate.machine.name,
        unit=Unit.CLIP,
        gpu=candidate.machine.gpu.name,
        gpus_per_replica=split.gpus,
        replicas=fleet.replicas if fleet else 1,
        instances=fleet.instances if fleet else 1,
        seconds=candidate.seconds,
        low=split.low,
        high=split.high,
        latency_p95=fleet.latency_p95 if fleet else candidate.seconds,
        utilisation=fleet.utilisation if fleet else 1.0,
        usd_per_hour=candidate.machine.usd_per_hour,
        usd_per_day=candidate.bill.usd_per_day if candidate.bill else None,
        usd_per_unit=candidate.usd_per_unit,
        placement=split.fit.name,
        peak_bytes=split.fit.memory.peak_bytes,
        is_scaled_to_zero=fleet is not None and fleet.is_scaled,
    )


def _sources(
    question: VideoQuestion,
    catalog: Catalog,
    calibration: Calibration,
    machines: Sequence[Machine],
    candidates: Sequence[Candidate],
) -> tuple[str, ...]:
    """Every fact that the answer depends on, with its date."""
    model, vae = question.model, question.model.vae
    found = [
        dated_source("model", model.id, model.source, model.as_of),
        dated_source("decoder", vae.id, f"{vae.source}; {vae.traffic_source}", vae.as_of),
        dated_source("operator traffic of", model.id, model.denoiser.traffic_source, model.as_of),
        f"calibration: {calibration.source} ({calibration.as_of})",
    ]
    if (fast := vae.fast) is not None:
        found.append(dated_source("fast decoder of", vae.id, fast.source, fast.as_of))
    found += machine_sources(machines, prices_of(candidates[0].machine.name, catalog) if candidates else ())
    found += [dated_source("managed", api.id, api.source, api.as_of) for api in catalog.video_apis.values()]
    return tuple(dict.fromkeys(found))
