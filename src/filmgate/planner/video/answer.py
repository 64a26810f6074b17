"""Answers a video question: ranks the machines and describes the best one."""

import math
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB
from filmgate.planner.answer import (
    Answer,
    MemoryAnswer,
    MemoryLever,
    Option,
    Rejected,
    StageAnswer,
    TimeAnswer,
    dated_source,
)
from filmgate.planner.fleet.answer import (
    ClipArrivals,
    ClipQuote,
    EncoderOnNvme,
    NodeSoftware,
    VideoFleetAnswer,
    price_isolation,
)
from filmgate.planner.fleet.money import HOURS_PER_MONTH
from filmgate.planner.fleet.pattern import Choice, Situation, choose
from filmgate.planner.fleet.sizing import BOOT_SECONDS, NVME_BYTES_PER_SECOND, cold_starts, isolation_levels
from filmgate.planner.machines import check_residency, machines_for
from filmgate.planner.video.candidates import (
    Candidate,
    VideoQuestion,
    cold_seconds,
    evaluate,
    interval,
    machine_time,
    rank,
    spread,
)
from filmgate.planner.video.cost import cost_answer, video_plots
from filmgate.planner.video.managed import cheapest, quote_managed
from filmgate.planner.video.memory import budget, offloaded_bytes, placement_changes, weight_bytes
from filmgate.planner.video.verdict import impossible_video, video_verdict
from filmgate.planner.video.work import token_count

ASSUMPTIONS = (
    f"a new node boots in {BOOT_SECONDS:.0f} s (not published per instance type)",
    f"local NVMe reads {NVME_BYTES_PER_SECOND / 1e9:.0f} GB/s (not published per instance type)",
    "business traffic arrives within 10 hours, and its busiest hour has 1.5 times the average rate",
    "bursty traffic arrives in batches of 4 on average",
)


def plan_video(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> Answer:
    """The complete answer to a video question."""
    elsewhere = check_residency(catalog, question.region, question.residency)
    machines, unusable = machines_for(catalog, question.region, gpu=question.gpu, names=question.instances)
    outcomes = [] if elsewhere else [evaluate(question, machine, calibration) for machine in machines]
    candidates = rank(question, [o for o in outcomes if isinstance(o, Candidate)])
    rejected = (*elsewhere, *(o for o in outcomes if isinstance(o, Rejected)), *unusable)
    answer = Answer(
        question=describe(question),
        unit="clip",
        verdict="",
        is_possible=bool(candidates),
        options=tuple(_option(question, c, i, calibration) for i, c in enumerate(candidates, start=1)),
        rejected=rejected,
        sources=_sources(question, catalog, calibration, candidates),
        assumptions=ASSUMPTIONS,
    )
    if not candidates:
        return replace(answer, verdict=impossible_video(question, catalog, calibration, rejected))
    best = candidates[0]
    quotes = quote_managed(question, catalog, best)
    choice = choose(_situation(question, best, quotes))
    return replace(
        answer,
        verdict=video_verdict(question, best, choice, quotes, interval(best, calibration)),
        memory=_memory(question, best, calibration),
        time=_time(best, calibration),
        fleet=_fleet(question, best, choice),
        cost=cost_answer(question, best, catalog, calibration, quotes),
        plots=video_plots(question, best, quotes),
    )


def describe(question: VideoQuestion) -> str:
    clip = question.clip
    length = f"{clip.frames} frames ({clip.seconds:.1f} s)"
    parts = [f"{question.model.name}, {clip.size}, {length}, {clip.steps} steps"]
    if question.clips_per_day is not None:
        parts.append(f"{question.clips_per_day:g} clips per day, {question.shape}")
    if question.slo_seconds is not None:
        parts.append(f"p95 within {question.slo_seconds:g} s")
    parts.append(f"on {question.gpu.name}" if question.gpu else f"in {question.region}")
    return "; ".join(parts)


def _memory(question: VideoQuestion, best: Candidate, calibration: Calibration) -> MemoryAnswer:
    found = best.split.fit.memory
    return MemoryAnswer(
        lines=found.charged_lines(),
        peak_bytes=found.peak_bytes,
        peak_stage=found.peak_stage,
        capacity_bytes=float(best.machine.gpu.memory_bytes),
        safety_factor=found.safety_factor,
        placement=best.split.fit.name,
        levers=tuple(_memory_levers(question, best, calibration)),
    )


def _memory_levers(question: VideoQuestion, best: Candidate, calibration: Calibration) -> list[MemoryLever]:
    """Each change with the time it adds. fp8 also changes the arithmetic; the cost levers show its time."""
    model, clip, constants = question.model, question.clip, calibration.constants
    base = replace(best.split.fit.placement, offload="none", is_tiled=False)
    whole = budget(model, clip, base, question.safety_factor).peak_bytes
    before = machine_time(question, best.machine, best.split.gpus, base, constants)
    found = []
    for change in placement_changes(model, clip, base, question.safety_factor):
        added = None
        if "fp8" not in (change.placement.weights, change.placement.text_weights):
            after = machine_time(question, best.machine, best.split.gpus, change.placement, constants)
            added = after.seconds - before.seconds
        saved = whole - change.peak_bytes
        found.append(MemoryLever(change.name, change.peak_bytes, change.peak_stage, saved, added))
    masks = model.denoiser.mask_bytes_per_token_pair * token_count(model, clip) ** 2
    if masks:
        name = "native attention backend, which builds masks; use a flash or varlen backend instead"
        found.append(MemoryLever(name, whole + masks, "denoise", -masks, None))
    return found


def _time(best: Candidate, calibration: Calibration) -> TimeAnswer:
    low, high = interval(best, calibration)
    half, is_extrapolated = spread(best.machine.gpu, calibration)
    note = f"interval: {math.expm1(half):.0%}, from runs that the calibration did not use"
    if is_extrapolated:
        note += f"; wider because the catalog has no run on {best.machine.gpu.name}"
    return TimeAnswer(
        seconds_per_clip=best.seconds,
        low=low,
        high=high,
        stages=tuple(
            StageAnswer(t.stage, t.seconds, t.compute, t.memory, t.interconnect, t.bound.value)
            for t in best.split.time.stages
        ),
        bound=best.split.time.bound.value,
        is_extrapolated=is_extrapolated,
        note=note,
    )


def _situation(question: VideoQuestion, best: Candidate, quotes: list[ClipQuote]) -> Situation:
    rival = cheapest(quotes)
    return Situation(
        slo_seconds=question.slo_seconds,
        service_seconds=best.seconds,
        cold_seconds=cold_seconds(question, best.machine),
        utilisation=best.fleet.utilisation if best.fleet else 1.0,
        own_usd_per_clip=best.usd_per_clip(question),
        managed_usd_per_clip=rival.usd_per_clip if rival else None,
        adapters=question.adapters,
    )


def _fleet(question: VideoQuestion, best: Candidate, choice: Choice) -> VideoFleetAnswer:
    machine, traffic = best.machine, question.traffic()
    gpu, hourly = machine.gpu, machine.usd_per_hour
    levels = isolation_levels(gpu, machine.instance, best.split.fit.memory.peak_bytes)
    per_gpu_month = hourly * HOURS_PER_MONTH / machine.gpus if hourly is not None else None
    weights = weight_bytes(question.model, question.precision)
    return VideoFleetAnswer(
        pattern=choice.pattern.value,
        reasons=choice.reasons,
        machine=machine.name,
        size=best.fleet,
        arrivals=(
            ClipArrivals(question.shape.value, traffic.per_day, traffic.peak_rate * 3600)
            if best.fleet and traffic
            else None
        ),
        cold_start=tuple(cold_starts(weights, machine.instance, gpu)),
        isolation=price_isolation(levels, per_gpu_month, question.tenants),
        tenants=question.tenants,
        software=NodeSoftware(
            min_driver=gpu.min_driver,
            min_cuda=gpu.min_cuda,
            needs_open_modules=gpu.needs_open_modules,
            karpenter_gpu_name=gpu.karpenter_name,
            nvenc=gpu.nvenc,
            encode_on="CPU: the GPU has no encoder" if gpu.nvenc == 0 else "GPU or CPU",
        ),
        text_encoder_on_nvme=_encoder_on_nvme(question, best),
    )


def _encoder_on_nvme(question: VideoQuestion, best: Candidate) -> EncoderOnNvme:
    size = offloaded_bytes(question.model, replace(best.split.fit.placement, offload="text"))
    seconds = size / NVME_BYTES_PER_SECOND
    return EncoderOnNvme(
        frees_bytes=size,
        added_seconds=seconds,
        is_worth_it=seconds < 0.05 * best.seconds and best.split.fit.name != "all resident",
        reason=f"frees {size / GIB:.1f} GiB, adds {seconds:.1f} s ({seconds / best.seconds:.1%} of a clip)",
    )


def _option(question: VideoQuestion, candidate: Candidate, position: int, calibration: Calibration) -> Option:
    low, high = interval(candidate, calibration)
    fleet, split = candidate.fleet, candidate.split
    return Option(
        rank=position,
        name=candidate.machine.name,
        gpu=candidate.machine.gpu.name,
        gpus_per_replica=split.gpus,
        replicas=fleet.replicas if fleet else 1,
        instances=fleet.instances if fleet else 1,
        seconds=candidate.seconds,
        low=low,
        high=high,
        latency_p95=fleet.latency_p95 if fleet else candidate.seconds,
        utilisation=fleet.utilisation if fleet else 1.0,
        usd_per_hour=candidate.machine.usd_per_hour,
        usd_per_day=candidate.bill.usd_per_day if candidate.bill else None,
        usd_per_unit=candidate.usd_per_clip(question),
        placement=split.fit.name,
        peak_bytes=split.fit.memory.peak_bytes,
    )


def _sources(
    question: VideoQuestion, catalog: Catalog, calibration: Calibration, candidates: list[Candidate]
) -> tuple[str, ...]:
    """Every fact that the answer depends on, with its date."""
    model, vae = question.model, question.model.vae
    found = [
        dated_source("model", model.id, model.source, model.as_of),
        dated_source("decoder", vae.id, f"{vae.source}; {vae.traffic_source}", vae.as_of),
        f"operator traffic: {model.denoiser.traffic_source}",
        f"calibration: {calibration.source} ({calibration.as_of})",
    ]
    if (fast := vae.fast) is not None:
        found.append(dated_source("fast decoder of", vae.id, fast.source, fast.as_of))
    for candidate in candidates[:3]:
        found += candidate.machine.sources()
    found += [dated_source("managed", api.id, api.source, api.as_of) for api in catalog.video_apis.values()]
    return tuple(dict.fromkeys(found))
