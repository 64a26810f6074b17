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
        yield from _size(fleet.size)
    yield from _cold_starts(fleet.cold_start)
    yield from _isolation(fleet.isolation)
    software, nvme = fleet.software, fleet.text_encoder_on_nvme
    if software.min_driver:
        yield "minimum driver", software.min_driver
    if software.min_cuda:
        yield "minimum CUDA", software.min_cuda
    if software.needs_open_modules:
        yield "kernel modules", "open"
    if software.karpenter_gpu_name:
        yield "Karpenter GPU name", software.karpenter_gpu_name
    yield "video encoding on", software.encode_on
    yield "text encoder on NVMe", f"{_worth(is_worth_it=nvme.is_worth_it)}: {nvme.reason}"


def _llm(fleet: LlmFleetAnswer) -> Iterator[Row]:
    yield "GPUs per replica", str(fleet.gpus_per_replica)
    if fleet.arrivals:
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


def _size(size: Fleet) -> Iterator[Row]:
    yield "replicas", str(size.replicas)
    if size.replicas_p99 is not None:
        yield "replicas for p99", str(size.replicas_p99)
    yield "instances", str(size.instances)
    yield "warm replicas", str(size.warm_replicas)


def _arrivals(arrivals: RequestArrivals) -> Iterator[Row]:
    yield "replicas", str(arrivals.replicas)
    if arrivals.replicas_p99 is not None:
        yield "replicas for p99", str(arrivals.replicas_p99)
    yield "instances", str(arrivals.instances)
    yield "warm replicas", str(arrivals.warm_replicas)
    yield "sequences per replica", str(arrivals.sequences_per_replica)
    yield "first token at p95", seconds(arrivals.first_token_ms_p95 / 1e3)
    yield "first token at p99", seconds(arrivals.first_token_ms_p99 / 1e3)


def _cold_starts(starts: Iterable[ColdStart]) -> Iterator[Row]:
    for start in starts:
        yield f"cold start: {start.source}", seconds(start.total_seconds)


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
    yield "memory in use, p99", f"{gib(fleet.memory_p99_bytes)}, {fleet.memory_share:.0%} of the device"
    if fleet.sm_p95 is not None:
        yield "SM active, p95", f"{fleet.sm_p95:.0%}"
    if fleet.dram_p95 is not None:
        yield "DRAM active, p95", f"{fleet.dram_p95:.0%}"


def _worth(*, is_worth_it: bool) -> str:
    return "worth it" if is_worth_it else "not worth it"
