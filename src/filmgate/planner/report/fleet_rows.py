"""The rows of the fleet table, for each kind of answer."""

from collections.abc import Iterable, Iterator

from filmgate.planner.fleet.answer import (
    FleetAnswer,
    LlmFleetAnswer,
    RequestArrivals,
    TenantIsolation,
    UtilisationAnswer,
    VideoFleetAnswer,
)
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.starts import ColdStart
from filmgate.planner.report.numbers import count, gib, seconds, usd

Row = tuple[str, str]


def fleet_rows(fleet: FleetAnswer) -> Iterator[Row]:
    if isinstance(fleet, UtilisationAnswer):
        yield from _utilisation(fleet)
        return
    yield "pattern", fleet.pattern
    yield from (("reason", reason) for reason in fleet.reasons)
    if isinstance(fleet, LlmFleetAnswer):
        yield from _llm(fleet)
    else:
        yield from _video(fleet)


def _video(fleet: VideoFleetAnswer) -> Iterator[Row]:
    if fleet.size:
        yield from _size(fleet.size, "formulas: the fleet is too large for a queue")
    yield from _cold_starts(fleet.cold_start)
    yield from _isolation(fleet.isolation)
    software, nvme = fleet.software, fleet.text_encoder_on_nvme
    if software.min_cuda:
        yield "minimum CUDA", software.min_cuda
    if software.needs_open_modules:
        yield "kernel modules", "open"
    yield "video encoding on", software.encode_on
    yield "text encoder on NVMe", f"{_worth(is_worth_it=nvme.is_worth_it)}: {nvme.reason}"


def _llm(fleet: LlmFleetAnswer) -> Iterator[Row]:
    yield "GPUs per replica", str(fleet.gpus_per_replica)
    if fleet.size and fleet.arrivals:
        yield from _size(fleet.size, "formulas: no limit on the first token")
        yield from _arrivals(fleet.arrivals)
    else:
        yield "replicas per instance", str(fleet.replicas_per_instance)
        yield "sequences per instance", str(fleet.sequences_per_instance)
    yield from _cold_starts(fleet.cold_start)
    yield from _isolation(fleet.isolation)
    cache = fleet.cache_on_nvme
    times = f"{seconds(cache.read_seconds)} to read, {seconds(cache.recompute_seconds)} to compute again"
    verdict = _worth(is_worth_it=cache.is_worth_it)
    yield "KV cache of a paused sequence on NVMe", f"{verdict}: {gib(cache.bytes)}, {times}"


def spare(size: Fleet) -> str:
    return f"{size.spare_instances} of them spare" if size.spare_instances else "none of them spare"


def _size(size: Fleet, unsimulated: str) -> Iterator[Row]:
    yield "replicas", str(size.replicas)
    if size.replicas_p99 is not None:
        yield "replicas for p99", str(size.replicas_p99)
    yield "instances", f"{size.instances}, {spare(size)}"
    yield "replicas that meet the target", str(size.needed_replicas)
    yield "warm replicas", str(size.warm_replicas)
    if size.machine_hours is not None:
        hours = (
            f"{size.machine_hours:.3g} h a day, all machines together; one or more run {size.up_hours:.3g} h"
        )
        yield "machine time", hours
        yield "clips that wait for a start", f"{size.cold_share:.0%}"
    yield "sized by", "simulation" if size.is_simulated else unsimulated
    if size.pools > 1:
        yield "tenants on separate hardware", str(size.pools)


def _arrivals(arrivals: RequestArrivals) -> Iterator[Row]:
    yield "sequences per replica", str(arrivals.sequences_per_replica)
    yield "first token at p50", seconds(arrivals.first_token_ms_p50 / 1e3)
    yield "first token at p95", seconds(arrivals.first_token_ms_p95 / 1e3)
    yield "first token at p99", seconds(arrivals.first_token_ms_p99 / 1e3)


def _cold_starts(starts: Iterable[ColdStart]) -> Iterator[Row]:
    for start in starts:
        parts = (
            ("node", start.boot_seconds),
            ("image", start.image_seconds),
            ("weights", start.load_seconds),
            ("compilers", start.build_seconds),
        )
        detail = ", ".join(f"{name} {seconds(value)}" for name, value in parts if value)
        yield f"cold start: {start.source}", f"{seconds(start.total_seconds)}: {detail}"


def _isolation(levels: Iterable[TenantIsolation]) -> Iterator[Row]:
    for level in levels:
        cost = level.usd_per_tenant_month
        price = f", {usd(cost)} per tenant and month" if cost else ""
        yield f"isolation: {level.level}", f"{'yes' if level.is_possible else 'no'}: {level.reason}{price}"


def _utilisation(fleet: UtilisationAnswer) -> Iterator[Row]:
    yield "judgement", fleet.judgement
    yield "samples", count(fleet.samples)
    yield "GPU utilisation, p50", f"{fleet.gpu_p50:.0%}"
    yield "GPU utilisation, p95", f"{fleet.gpu_p95:.0%}"
    if fleet.memory_p99_bytes:
        yield "memory in use, p99", f"{gib(fleet.memory_p99_bytes)}, {fleet.memory_share:.0%} of the device"
    if fleet.sm_p95 is not None:
        yield "SM active, p95", f"{fleet.sm_p95:.0%}"
    if fleet.dram_p95 is not None:
        yield "DRAM active, p95", f"{fleet.dram_p95:.0%}"


def _worth(*, is_worth_it: bool) -> str:
    return "worth it" if is_worth_it else "not worth it"
