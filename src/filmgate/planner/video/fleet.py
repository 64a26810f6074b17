"""The fleet of a video answer: machines, starts, tenants, blast radius, and what to deploy."""

import math
from dataclasses import replace

from filmgate.catalog.gpus import GIB
from filmgate.planner.fleet.answer import (
    Alternative,
    BlastRadius,
    ChartWorkers,
    ClipArrivals,
    Deployment,
    EncoderOnNvme,
    NodeSoftware,
    VideoFleetAnswer,
)
from filmgate.planner.fleet.isolation import isolation_levels
from filmgate.planner.fleet.money import HOURS_PER_MONTH
from filmgate.planner.fleet.pattern import Choice, Pattern
from filmgate.planner.fleet.sizing import worst_latency
from filmgate.planner.fleet.starts import NVME_BYTES_PER_SECOND
from filmgate.planner.fleet.traffic import BUSINESS_HOURS, FIRST_BUSY_HOUR, shape_name
from filmgate.planner.video.candidates import Candidate
from filmgate.planner.video.memory import offloaded_bytes

MIN_BF16_CAPABILITY = 8.0
MAX_DRAIN_SECONDS = 900


def video_fleet(best: Candidate, choice: Choice, others: tuple[Alternative, ...]) -> VideoFleetAnswer:
    question, machine, traffic = best.question, best.machine, best.question.traffic
    gpu, hourly = machine.gpu, machine.usd_per_hour
    peak = best.split.fit.memory.peak_bytes
    levels = isolation_levels(gpu, machine.instance, peak, best.seconds, question.slo_seconds)
    if hourly is not None:
        per_gpu_month = hourly * HOURS_PER_MONTH / machine.gpus
        levels = tuple(level.priced(per_gpu_month) for level in levels)
    return VideoFleetAnswer(
        pattern=choice.pattern.value,
        reasons=choice.reasons,
        machine=machine.name,
        size=best.fleet,
        arrivals=(
            ClipArrivals(shape_name(traffic), traffic.per_day, traffic.peak_rate * 3600)
            if best.fleet and traffic
            else None
        ),
        cold_start=best.cold_starts,
        isolation=levels,
        tenants=question.tenants,
        software=NodeSoftware.for_gpu(gpu),
        text_encoder_on_nvme=_encoder_on_nvme(best),
        blast_radius=_blast_radius(best),
        deployment=_deployment(best),
        not_with_filmgate=others,
    )


def _blast_radius(best: Candidate) -> BlastRadius | None:
    fleet = best.fleet
    if fleet is None:
        return None
    left = (fleet.replicas - fleet.replicas_per_instance) // fleet.pools
    during = None
    if fleet.is_scaled:  # simulated without the spare machines
        during = fleet.latency_p95 if fleet.spare_instances else None
    elif left > 0 and not best.demand.traffic.given and fleet.pools == 1:
        during = worst_latency(replace(best.demand, service_high=best.seconds), left)
    return BlastRadius.of(fleet, during, best.start.new_machine)


def _deployment(best: Candidate) -> Deployment:
    question, fleet, placement = best.question, best.fleet, best.split.fit.placement
    capability = float(best.machine.gpu.compute_capability or MIN_BF16_CAPABILITY)
    instances = fleet.instances if fleet else 1
    return Deployment(
        instance_type=best.machine.name,
        machines=instances,
        machines_in_quiet_hours=fleet.warm_instances if fleet else instances,
        spare_machines=fleet.spare_instances if fleet else 0,
        workers_per_machine=best.machine.gpus // best.split.gpus,
        zones=min(2, instances),
        model=question.model.repo or question.model.id,
        region=question.region,
        offload=placement.offload,
        compile={"compiled": "on", "eager": "off"}[question.mode] if question.mode else "auto",
        dtype="bfloat16" if capability >= MIN_BF16_CAPABILITY else "float16",
        weights="int8" if question.precision == "int8" else "full",
        default_quality=question.clip.quality,
        is_tiled=placement.is_tiled,
        tenants=question.tenants,
        tenancy=question.tenancy.value,
        slo_seconds=question.slo_seconds,
        is_scaled_to_zero=fleet is not None and fleet.is_scaled,
        chart=_chart(best),
    )


def _chart(best: Candidate) -> ChartWorkers:
    """The replicas of one pool. A drain finishes the running clip where that takes minutes, not hours."""
    fleet, per_machine = best.fleet, best.machine.gpus // best.split.gpus
    pools = fleet.pools if fleet else 1
    replicas = fleet.replicas // pools if fleet else 1
    most = max(replicas, (fleet.replicas_p99 or 0) // pools) if fleet else 1
    parts = best.bill.purchases if best.bill else ()
    spot = fleet.replicas_of_pool(sum(part.instances for part in parts if part.how == "spot")) if fleet else 0
    is_scaled = fleet is not None and fleet.is_scaled
    is_scheduled = best.pattern is Pattern.SCHEDULED
    always = fleet.warm_replicas // pools if fleet else 1
    warm = min(always, replicas - spot)
    spare = fleet.spare_instances // pools * per_machine if fleet else 0
    backlog = max(best.seconds, fleet.wait_p95) if fleet else best.seconds
    if fleet and fleet.is_scaled:
        backlog = fleet.waiting_per_replica * best.seconds
    return ChartWorkers(
        min_replicas=warm,
        max_replicas=most - spot,
        min_spot_replicas=always - warm,
        spot_replicas=spot,
        replicas_while_active=min(1 + spare, most) if is_scaled else 0,
        scheduled_replicas=replicas - spot if is_scheduled else 0,
        start_hour=FIRST_BUSY_HOUR if is_scheduled else 0,
        end_hour=FIRST_BUSY_HOUR + len(BUSINESS_HOURS) if is_scheduled else 0,
        # A backlog that one worker clears within the planned waiting time needs no second worker.
        backlog_seconds_per_worker=math.ceil(backlog),
        drain_seconds=min(MAX_DRAIN_SECONDS, math.ceil(best.split.high)),
    )


def _encoder_on_nvme(best: Candidate) -> EncoderOnNvme:
    size = offloaded_bytes(best.question.model, replace(best.split.fit.placement, offload="text"))
    seconds = size / NVME_BYTES_PER_SECOND
    return EncoderOnNvme(
        frees_bytes=size,
        added_seconds=seconds,
        is_worth_it=seconds < 0.05 * best.seconds and best.split.fit.name != "all resident",
        reason=f"frees {size / GIB:.1f} GiB, adds {seconds:.1f} s ({seconds / best.seconds:.1%} of a clip)",
    )
