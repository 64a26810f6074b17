"""From ranked candidates to an answer: memory, time, fleet, cost, options, what was rejected, and sources."""

import math
from dataclasses import asdict, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import (
    Answer,
    Json,
    MemoryAnswer,
    MemoryLever,
    MemoryPart,
    Option,
    Rejected,
    StageAnswer,
    TimeAnswer,
)
from filmgate.planner.fleet.pattern import Choice, Situation, choose
from filmgate.planner.fleet.sizing import (
    BOOT_SECONDS,
    GIB,
    NVME_BYTES_A_SECOND,
    cold_starts,
    isolation_levels,
)
from filmgate.planner.machines import machines_for, residency_refusals
from filmgate.planner.video.candidates import (
    Candidate,
    VideoAsk,
    cold_seconds,
    evaluate,
    machine_time,
    offloaded_bytes,
    rank,
    spread,
    weight_total,
)
from filmgate.planner.video.cost import cost_block, video_plots
from filmgate.planner.video.managed import Offer, cheapest, managed_offers
from filmgate.planner.video.memory import budget, levers
from filmgate.planner.video.verdict import impossible_video, video_verdict
from filmgate.planner.video.work import token_count

HOURS_A_MONTH = 730
ASSUMPTIONS = (
    f"a new node boots in {BOOT_SECONDS:.0f} s; nobody publishes it per instance",
    f"local NVMe reads {NVME_BYTES_A_SECOND / 1e9:.0f} GB/s; nobody publishes it per instance",
    "business: all clips in 10 hours, the busiest at 1.5 times the average; bursty: bunches of 4 on average",
)


def plan_video(ask: VideoAsk, catalog: Catalog, calibration: Calibration) -> Answer:
    """The whole answer to a video question."""
    refusals = residency_refusals(catalog, ask.region, ask.residency)
    machines, rejected = machines_for(catalog, ask.region, gpu=ask.gpu, names=ask.instances)
    outcomes = [] if refusals else [evaluate(ask, machine, calibration) for machine in machines]
    candidates = rank(ask, [o for o in outcomes if isinstance(o, Candidate)])
    rejected = refusals + [o for o in outcomes if isinstance(o, Rejected)] + rejected
    question = describe(ask)
    sources = sources_of(ask, catalog, calibration, candidates)
    if not candidates:
        verdict = impossible_video(ask, catalog, calibration, rejected)
        return Answer(
            question,
            "clip",
            verdict,
            False,
            None,
            None,
            None,
            None,
            (),
            tuple(rejected),
            sources,
            ASSUMPTIONS,
        )
    best = candidates[0]
    offers = managed_offers(ask, catalog, best)
    choice = choose(_situation(ask, best, offers))
    return Answer(
        question=question,
        unit="clip",
        verdict=video_verdict(ask, best, choice, offers, interval(best, calibration)),
        is_possible=True,
        memory=memory_answer(ask, best, calibration),
        time=time_answer(best, calibration),
        fleet=fleet_block(ask, best, choice),
        cost=cost_block(ask, best, catalog, calibration, offers),
        options=tuple(option(ask, c, i, calibration) for i, c in enumerate(candidates, start=1)),
        rejected=tuple(rejected),
        sources=sources,
        assumptions=ASSUMPTIONS,
        plots=video_plots(ask, best, offers),
    )


def describe(ask: VideoAsk) -> str:
    clip = ask.clip
    length = f"{clip.frames} frames ({clip.seconds:.1f} s)"
    words = [f"{ask.model.name}, {clip.width}x{clip.height}, {length}, {clip.steps} steps"]
    if ask.clips_per_day is not None:
        words.append(f"{ask.clips_per_day:g} clips a day, {ask.shape}")
    if ask.slo_seconds is not None:
        words.append(f"p95 within {ask.slo_seconds:g} s")
    words.append(f"on {ask.gpu.name}" if ask.gpu else f"in {ask.region}")
    return "; ".join(words)


def interval(candidate: Candidate, calibration: Calibration) -> tuple[float, float]:
    half, _ = spread(candidate.machine.gpu, calibration)
    return candidate.seconds * math.exp(-half), candidate.seconds * math.exp(half)


def memory_answer(ask: VideoAsk, best: Candidate, calibration: Calibration) -> MemoryAnswer:
    found = best.trial.memory
    factor = found.safety_factor
    lines = tuple(
        MemoryPart(
            line.name,
            line.bytes * (factor if line.is_estimate else 1.0),
            tuple(stage.value for stage in line.stages),
            line.is_estimate,
        )
        for line in found.lines
    )
    return MemoryAnswer(
        lines=lines,
        peak_bytes=found.peak_bytes,
        peak_stage=found.peak_stage.value,
        capacity_bytes=float(best.machine.gpu.memory_bytes),
        safety_factor=factor,
        placement=best.trial.rung,
        levers=tuple(_memory_levers(ask, best, calibration)),
    )


def _memory_levers(ask: VideoAsk, best: Candidate, calibration: Calibration) -> list[MemoryLever]:
    """Each change beside what it adds to the clip; fp8 changes the arithmetic too and is priced apart."""
    found = []
    base = replace(best.trial.placement, offload="none", is_tiled=False)
    resident = levers(ask.model, ask.clip, base, ask.safety_factor)
    whole = budget(ask.model, ask.clip, base, ask.safety_factor).peak_bytes
    plain = machine_time(ask, best.machine, best.split, base, calibration.constants)
    for lever in resident:
        is_quantised = "fp8" in (lever.placement.weights, lever.placement.text_weights)
        added = None
        if not is_quantised:
            time = machine_time(ask, best.machine, best.split, lever.placement, calibration.constants)
            added = time.seconds - plain.seconds
        found.append(
            MemoryLever(lever.name, lever.peak_bytes, lever.peak_stage.value, whole - lever.peak_bytes, added)
        )
    masks = ask.model.denoiser.mask_bytes_per_token_pair * token_count(ask.model, ask.clip) ** 2
    if masks:
        name = "native attention backend, which builds masks: use a flash or varlen one"
        found.append(MemoryLever(name, whole + masks, "denoise", -masks, None))
    return found


def time_answer(best: Candidate, calibration: Calibration) -> TimeAnswer:
    low, high = interval(best, calibration)
    half, is_extrapolated = spread(best.machine.gpu, calibration)
    note = f"interval: {math.expm1(half):.0%}, from runs the calibration did not see"
    if is_extrapolated:
        note += f"; no run on {best.machine.gpu.name} is in the catalog, so it is widened"
    return TimeAnswer(
        seconds_per_clip=best.seconds,
        low=low,
        high=high,
        stages=tuple(
            StageAnswer(t.stage, t.seconds, t.compute, t.memory, t.interconnect, t.bound.value)
            for t in best.trial.time.stages
        ),
        bound=best.trial.time.bound.value,
        is_extrapolated=is_extrapolated,
        note=note,
    )


def _situation(ask: VideoAsk, best: Candidate, offers: list[Offer]) -> Situation:
    rival = cheapest(offers)
    return Situation(
        slo_seconds=ask.slo_seconds,
        service_seconds=best.seconds,
        cold_seconds=cold_seconds(ask, best.machine),
        utilisation=best.fleet.utilisation if best.fleet else 1.0,
        own_usd_per_clip=best.usd_per_clip(ask),
        managed_usd_per_clip=rival.usd_per_clip if rival else None,
        adapters=ask.adapters,
    )


def fleet_block(ask: VideoAsk, best: Candidate, choice: Choice) -> Json:
    """Replicas, warm pool, cold start, isolation and the pattern with its reasons."""
    traffic = ask.traffic()
    block: Json = {
        "pattern": choice.pattern.value,
        "reasons": list(choice.reasons),
        "machine": best.machine.name,
    }
    if best.fleet and traffic:
        block |= asdict(best.fleet)
        block["arrivals"] = {
            "shape": ask.shape.value,
            "per_day": traffic.per_day,
            "peak_per_hour": traffic.peak_rate * 3600,
        }
    starts = cold_starts(weight_total(ask), best.machine.instance, best.machine.gpu)
    block["cold_start"] = [asdict(start) for start in starts]
    walls = isolation_levels(best.machine.gpu, best.machine.instance, best.trial.memory.peak_bytes)
    hourly = best.machine.usd_per_hour
    share = hourly * HOURS_A_MONTH / best.machine.gpus if hourly is not None else None
    block["isolation"] = [
        asdict(wall)
        | {
            "usd_per_tenant_month": share * wall.gpus_per_tenant if share is not None else None,
            "usd_per_month": share * wall.gpus_per_tenant * ask.tenants if share is not None else None,
        }
        for wall in walls
    ]
    block["tenants"] = ask.tenants
    block["software"] = _software_needs(best)
    block["text_encoder_on_nvme"] = _nvme_note(ask, best)
    return block


def _software_needs(best: Candidate) -> Json:
    """What the node must carry, and how Karpenter names its GPU."""
    gpu = best.machine.gpu
    return {
        "min_driver": gpu.min_driver,
        "min_cuda": gpu.min_cuda,
        "needs_open_modules": gpu.needs_open_modules,
        "karpenter_gpu_name": gpu.karpenter_name,
        "nvenc": gpu.nvenc,
        "encode_on": "CPU: the GPU has no encoder" if gpu.nvenc == 0 else "GPU or CPU",
    }


def _nvme_note(ask: VideoAsk, best: Candidate) -> Json:
    """Whether the text encoder is better read from NVMe for each new prompt than kept on the GPU."""
    size = offloaded_bytes(ask, replace(best.trial.placement, offload="text"))
    seconds = size / NVME_BYTES_A_SECOND
    return {
        "frees_bytes": size,
        "added_seconds": seconds,
        "is_worth_it": seconds < 0.05 * best.seconds and best.trial.rung != "all resident",
        "reason": f"{size / GIB:.1f} GiB for {seconds:.1f} s, {seconds / best.seconds:.1%} of a clip",
    }


def option(ask: VideoAsk, candidate: Candidate, place: int, calibration: Calibration) -> Option:
    low, high = interval(candidate, calibration)
    fleet = candidate.fleet
    return Option(
        rank=place,
        name=candidate.machine.name,
        gpu=candidate.machine.gpu.name,
        gpus_per_replica=candidate.split,
        replicas=fleet.replicas if fleet else 1,
        instances=fleet.instances if fleet else 1,
        seconds=candidate.seconds,
        low=low,
        high=high,
        latency_p95=fleet.latency_p95 if fleet else candidate.seconds,
        utilisation=fleet.utilisation if fleet else 1.0,
        usd_per_hour=candidate.machine.usd_per_hour,
        usd_per_day=candidate.bill.usd_per_day if candidate.bill else None,
        usd_per_unit=candidate.usd_per_clip(ask),
        placement=candidate.trial.rung,
        peak_bytes=candidate.trial.memory.peak_bytes,
    )


def sources_of(
    ask: VideoAsk, catalog: Catalog, calibration: Calibration, candidates: list[Candidate]
) -> tuple[str, ...]:
    """Every fact the answer rests on, with its date."""
    model = ask.model
    found = [
        f"model {model.id}: {model.source} ({model.as_of})",
        f"decoder {model.vae.id}: {model.vae.source}; {model.vae.traffic_source} ({model.vae.as_of})",
        f"operator traffic: {model.denoiser.traffic_source}",
        f"calibration: {calibration.source} ({calibration.as_of})",
    ]
    if (fast := model.vae.fast) is not None:
        found.append(f"fast decoder of {model.vae.id}: {fast.source} ({fast.as_of})")
    for candidate in candidates[:3]:
        gpu, price, instance = candidate.machine.gpu, candidate.machine.price, candidate.machine.instance
        found.append(f"GPU {gpu.name}: {gpu.source} ({gpu.as_of})")
        if instance:
            found.append(f"instance {instance.name}: {instance.source} ({instance.as_of})")
        if price:
            found.append(f"price {price.instance} in {price.region}: {price.source} ({price.as_of})")
    found += [f"managed {api.id}: {api.source} ({api.as_of})" for api in catalog.video_apis.values()]
    return tuple(dict.fromkeys(found))
