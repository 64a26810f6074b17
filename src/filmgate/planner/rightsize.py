"""Judges a machine from its GPU metrics: too big, too small or fine, and which machine would fit."""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB, Gpu
from filmgate.planner.answer import Answer, Kind, Option, Rejected
from filmgate.planner.fleet.answer import UtilisationAnswer
from filmgate.planner.machines import Machine, machine_sources, machines_for, unusable_because
from filmgate.planner.percentiles import percentile
from filmgate.planner.report.numbers import usd

LOW_UTILISATION = 0.40
HIGH_UTILISATION = 0.80
HIGH_MEMORY_SHARE = 0.92
PREALLOCATED_SHARE = 0.70
PREALLOCATED_CHANGE = 0.02  # engines reserve memory once; a load that needs it changes by more
MEMORY_HEADROOM = 1.2
LOAD_HEADROOM = 1 / HIGH_UTILISATION  # or the replacement is too small, too
OVERLOAD_HEADROOM = 1.5


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """Samples of one or more GPUs. What the source does not record is empty; `gpu_share` never is."""

    gpu_share: tuple[float, ...]
    memory_bytes: tuple[float, ...] = ()
    sm_share: tuple[float, ...] = ()
    dram_share: tuple[float, ...] = ()


class Judgement(StrEnum):
    """What the load says about the size of a machine."""

    TOO_BIG = "too big"
    TOO_SMALL = "too small"
    FINE = "fine"
    STARVED = "starved"


def plan_rightsize(
    samples: GpuMetrics,
    catalog: Catalog,
    region: str,
    *,
    gpu: Gpu | None = None,
    instance: str | None = None,
    source: str = "",
) -> Answer:
    """The verdict on the current machine, and the machines that can carry the same load."""
    machines, unusable = machines_for(catalog, region, gpu=gpu, names=[instance] if instance else [])
    name = instance or (gpu.name if gpu else "")
    origin = f" of {source}" if source else ""
    question = f"is {name} the right size, by {len(samples.gpu_share)} samples{origin}"
    answer = Answer(question, Kind.RIGHTSIZE, "", is_possible=False)
    if not machines:
        return replace(answer, verdict=f"Cannot judge {name}: {unusable_because(unusable[0])}")
    now = machines[0]
    load = _utilisation(samples, now.gpu.memory_bytes)
    if load.memory_share > 1:
        reason = f"{load.memory_p99_bytes / GIB:.1f} GiB per GPU are in use, more than {now.gpu.name} has"
        return replace(answer, verdict=f"Cannot judge {name}: {reason}.")
    is_preallocated = _is_preallocated(samples, load)
    judgement, reason = _judge(samples, load, is_preallocated=is_preallocated)
    need = _Need.of(now, load, judgement, is_preallocated=is_preallocated)
    fits, rejected = _alternatives(catalog, region, now, need)
    options = [_option(machine, need, rank) for rank, machine in enumerate(fits, start=1)]
    best = next((option for option in options if option.name != now.name), None)
    return replace(
        answer,
        verdict=f"{now.name} is {judgement}: {reason}. {_advice(now, region, need, best)}".strip(),
        is_possible=True,
        fleet=replace(load, judgement=judgement.value),
        options=tuple(options),
        rejected=tuple(rejected),
        sources=tuple(machine_sources([now, *fits])),
    )


def _utilisation(samples: GpuMetrics, capacity: float) -> UtilisationAnswer:
    """The load, without a judgement. Memory that is not recorded is zero."""
    held = percentile(samples.memory_bytes, 0.99) if samples.memory_bytes else 0.0
    return UtilisationAnswer(
        samples=len(samples.gpu_share),
        gpu_p50=percentile(samples.gpu_share, 0.5),
        gpu_p95=percentile(samples.gpu_share, 0.95),
        memory_p99_bytes=held,
        memory_share=held / capacity,
        sm_p95=percentile(samples.sm_share, 0.95) if samples.sm_share else None,
        dram_p95=percentile(samples.dram_share, 0.95) if samples.dram_share else None,
        judgement="",
    )


def _is_preallocated(samples: GpuMetrics, load: UtilisationAnswer) -> bool:
    """Whether an engine reserved the memory, or it is not recorded: then it says nothing about the need."""
    if not samples.memory_bytes:
        return True
    change = load.memory_p99_bytes - percentile(samples.memory_bytes, 0.05)
    is_flat = change <= PREALLOCATED_CHANGE * load.memory_p99_bytes
    return is_flat and load.memory_share > PREALLOCATED_SHARE


def _judge(samples: GpuMetrics, load: UtilisationAnswer, *, is_preallocated: bool) -> tuple[Judgement, str]:
    memory = "its memory is not recorded"
    if samples.memory_bytes:
        memory = f"{load.memory_share:.0%} of its memory is used"
    what = f"p95 GPU utilization is {load.gpu_p95:.0%}"
    parts = (("SM", load.sm_p95), ("DRAM", load.dram_p95))
    if active := ", ".join(f"{name} active {value:.0%}" for name, value in parts if value is not None):
        what = f"{what} ({active})"
    if load.memory_share > HIGH_MEMORY_SHARE and not is_preallocated:
        return Judgement.TOO_SMALL, f"p99 memory is {load.memory_share:.0%} of the device"
    if load.activity > HIGH_UTILISATION:
        return Judgement.TOO_SMALL, what
    if load.gpu_p95 > HIGH_UTILISATION and load.activity < LOW_UTILISATION:
        return Judgement.STARVED, f"{what}: kernels wait for the host; check the CPU and the batching"
    if max(load.gpu_p95, load.activity) < LOW_UTILISATION:
        return Judgement.TOO_BIG, f"{what}, and {memory}"
    return Judgement.FINE, f"{what}, and {memory}"


@dataclass(frozen=True, slots=True)
class _Need:
    """What a machine must have to carry the load, and the highest price that makes a move worth it."""

    gpu_bytes: float
    flops: float
    bandwidth: float
    used_flops: float
    max_usd_per_hour: float
    judgement: Judgement

    @classmethod
    def of(
        cls, now: Machine, load: UtilisationAnswer, judgement: Judgement, *, is_preallocated: bool
    ) -> "_Need":
        """The load with headroom. A machine that is large enough needs no more than it has."""
        most = inf if judgement is Judgement.TOO_SMALL else 1.0
        headroom = LOAD_HEADROOM if load.activity <= HIGH_UTILISATION else OVERLOAD_HEADROOM
        held = 0.98 if is_preallocated else min(most, load.memory_share * MEMORY_HEADROOM)
        busy, moved = (load.gpu_p95 if share is None else share for share in (load.sm_p95, load.dram_p95))
        is_too_big = judgement is Judgement.TOO_BIG
        return cls(
            gpu_bytes=now.gpu.memory_bytes * held,
            flops=_flops(now) * min(most, busy * headroom),
            bandwidth=_bandwidth(now) * min(most, moved * headroom),
            used_flops=_flops(now) * busy,
            max_usd_per_hour=now.usd_per_hour if is_too_big and now.usd_per_hour is not None else inf,
            judgement=judgement,
        )

    def reject(self, machine: Machine, now: Machine) -> Rejected | None:
        """Why a machine cannot carry the load, or costs too much; None if it fits."""
        for have, need, unit, name in (
            (machine.gpu.memory_bytes / GIB, self.gpu_bytes / GIB, "GiB", "GiB per GPU"),
            (_flops(machine) / 1e12, self.flops / 1e12, "TFLOP/s", "TFLOP/s"),
            (_bandwidth(machine) / 1e9, self.bandwidth / 1e9, "GB/s", "GB/s"),
        ):
            if have < need:
                digits = 1 if unit == "GiB" else 0
                reason = f"{have:.{digits}f} {name}, needs {need:.{digits}f}"
                return Rejected(machine.name, reason, have, need, unit)
        price = machine.usd_per_hour or 0.0
        if machine.name != now.name and price >= self.max_usd_per_hour:
            return Rejected(
                machine.name, f"not cheaper than {now.name}", price, self.max_usd_per_hour, "USD/h"
            )
        return None


def _advice(now: Machine, region: str, need: _Need, best: Option | None) -> str:
    if need.judgement in (Judgement.FINE, Judgement.STARVED):
        return ""
    if best is None:
        wanted = "cheaper machine" if need.judgement is Judgement.TOO_BIG else "machine"
        return (
            f"No {wanted} in {region} has the {need.gpu_bytes / GIB:.1f} GiB per GPU, "
            f"{need.flops / 1e12:.0f} TFLOP/s and {need.bandwidth / 1e9:.0f} GB/s that the load needs."
        )
    price = f"{best.name} at {usd(best.usd_per_hour)} per hour"
    if now.usd_per_hour is None or best.usd_per_hour is None:
        return f"The cheapest machine in {region} that fits is {price}."
    return f"Move to {price} ({best.usd_per_hour / now.usd_per_hour - 1:+.0%})."


def _alternatives(
    catalog: Catalog, region: str, now: Machine, need: _Need
) -> tuple[list[Machine], list[Rejected]]:
    """Machines with headroom for the memory, the arithmetic and the bandwidth in use, cheapest first."""
    machines, unusable = machines_for(catalog, region)
    outcomes = [(machine, need.reject(machine, now)) for machine in machines]
    fits = [machine for machine, rejection in outcomes if rejection is None]
    rejected = [rejection for _, rejection in outcomes if rejection]
    return sorted(fits, key=lambda one: one.usd_per_hour or 0.0), [*rejected, *unusable]


def _option(machine: Machine, need: _Need, rank: int) -> Option:
    return Option(
        rank=rank,
        name=machine.name,
        gpu=machine.gpu.name,
        gpus_per_replica=machine.gpus,
        utilisation=need.used_flops / _flops(machine),
        usd_per_hour=machine.usd_per_hour,
        usd_per_day=(machine.usd_per_hour or 0.0) * 24,
    )


def _flops(machine: Machine) -> float:
    return (machine.gpu.half_flops or 0.0) * machine.gpus


def _bandwidth(machine: Machine) -> float:
    return (machine.gpu.bandwidth or 0.0) * machine.gpus
