"""The fleet of a video answer: machines, starts, tenants, blast radius, and what to deploy."""

from dataclasses import replace

from filmgate.catalog.gpus import GIB
from filmgate.planner.fleet.answer import (
    Alternative,
    BlastRadius,
    ClipArrivals,
    Deployment,
    EncoderOnNvme,
    VideoFleetAnswer,
    price_isolation,
)
from filmgate.planner.fleet.isolation import Clip, isolation_levels
from filmgate.planner.fleet.money import HOURS_PER_MONTH
from filmgate.planner.fleet.pattern import Choice
from filmgate.planner.fleet.sizing import worst_latency
from filmgate.planner.fleet.software import node_software
from filmgate.planner.fleet.starts import NVME_BYTES_PER_SECOND, cold_starts
from filmgate.planner.video.candidates import Candidate, demand_of, new_replica_seconds, startup_of
from filmgate.planner.video.memory import offloaded_bytes
from filmgate.planner.video.question import VideoQuestion

MIN_BF16_CAPABILITY = 8.0


def video_fleet(
    question: VideoQuestion, best: Candidate, choice: Choice, others: tuple[Alternative, ...]
) -> VideoFleetAnswer:
    machine, traffic = best.machine, question.traffic()
    gpu, hourly = machine.gpu, machine.usd_per_hour
    need = Clip(best.split.fit.memory.peak_bytes, best.seconds, question.slo_seconds)
    levels = isolation_levels(gpu, machine.instance, need)
    per_gpu_month = hourly * HOURS_PER_MONTH / machine.gpus if hourly is not None else None
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
        cold_start=tuple(cold_starts(startup_of(question, machine, best.split), machine.instance, gpu)),
        isolation=price_isolation(levels, per_gpu_month, question.tenants),
        tenants=question.tenants,
        software=node_software(gpu),
        text_encoder_on_nvme=_encoder_on_nvme(question, best),
        blast_radius=_blast_radius(question, best),
        deployment=_deployment(question, best),
        not_with_filmgate=others,
    )


def _blast_radius(question: VideoQuestion, best: Candidate) -> BlastRadius | None:
    fleet = best.fleet
    if fleet is None:
        return None
    lost = fleet.replicas // fleet.instances
    left = (fleet.replicas - lost) // fleet.pools
    during = None
    if left > 0 and not question.arrivals and fleet.pools == 1:
        during = worst_latency(replace(demand_of(question, best.split), service_high=best.seconds), left)
    return BlastRadius(
        replicas_lost=lost,
        share_lost=lost / fleet.replicas,
        interrupted_clips=lost,
        latency_p95=during,
        recovery_seconds=new_replica_seconds(question, best.machine, best.split),
        zones=min(2, fleet.instances),
    )


def _deployment(question: VideoQuestion, best: Candidate) -> Deployment:
    fleet, placement = best.fleet, best.split.fit.placement
    capability = float(best.machine.gpu.compute_capability or MIN_BF16_CAPABILITY)
    instances = fleet.instances if fleet else 1
    return Deployment(
        instance_type=best.machine.name,
        machines=instances,
        machines_in_quiet_hours=fleet.warm_instances if fleet else 0,
        spare_machines=fleet.spare_instances if fleet else 0,
        workers_per_machine=best.machine.gpus // best.split.gpus,
        zones=min(2, instances),
        model=question.model.repo or question.model.id,
        region=question.region,
        offload=placement.offload,
        compile={"compiled": "on", "eager": "off"}[question.mode] if question.mode else "auto",
        dtype="bfloat16" if capability >= MIN_BF16_CAPABILITY else "float16",
        is_tiled=placement.is_tiled,
        tenants=question.tenants,
        tenancy=question.tenancy.value,
        slo_seconds=question.slo_seconds,
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
