"""Judges a machine from its GPU metrics: too big, too small or fine, and which machine would fit."""

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB, Gpu
from filmgate.catalog.utilisation import Utilisation
from filmgate.planner.answer import Answer, MemoryAnswer, Option, Rejected, dated_source
from filmgate.planner.fleet.answer import UtilisationAnswer
from filmgate.planner.machines import Machine, machines_for
from filmgate.planner.memory import MemoryLine
from filmgate.planner.percentiles import percentile

LOW_UTILISATION = 0.40
HIGH_UTILISATION = 0.90
HIGH_MEMORY_SHARE = 0.92
HEADROOM = 1.2
OVERLOAD_HEADROOM = 1.5


def plan_rightsize(
    samples: Utilisation,
    catalog: Catalog,
    region: str,
    *,
    gpu: Gpu | None = None,
    instance: str | None = None,
) -> Answer:
    """The verdict on the current machine, and the machines that can carry the same load."""
    machines, unusable = machines_for(catalog, region, gpu=gpu, names=[instance] if instance else [])
    if not machines:
        reason = unusable[0].reason if unusable else "unknown machine"
        return Answer("rightsize", "hour", f"Cannot judge: {reason}.", is_possible=False)
    now = machines[0]
    busy = percentile(samples.gpu_share, 0.95)
    held = percentile(samples.memory_bytes, 0.99)
    capacity = float(now.gpu.memory_bytes)
    judgement, reason = _judge(busy, held / capacity)
    options, rejected = _alternatives(catalog, region, now, busy, held)
    best = next((o for o in options if o.name != now.name), None)
    line = MemoryLine("p99 of memory in use", held, ("serving",), False)
    return Answer(
        question=f"is {now.name} the right size, by {len(samples.gpu_share)} samples",
        unit="hour",
        verdict=_verdict(now, judgement, reason, best),
        is_possible=True,
        memory=MemoryAnswer((line,), held, "serving", capacity, HEADROOM, now.name),
        fleet=UtilisationAnswer(
            samples=len(samples.gpu_share),
            gpu_p50=percentile(samples.gpu_share, 0.5),
            gpu_p95=busy,
            memory_p99_bytes=held,
            memory_share=held / capacity,
            sm_p95=percentile(samples.sm_share, 0.95) if samples.sm_share else None,
            dram_p95=percentile(samples.dram_share, 0.95) if samples.dram_share else None,
            judgement=judgement,
        ),
        options=tuple(options),
        rejected=tuple(rejected),
        sources=(dated_source("GPU", now.gpu.name, now.gpu.source, now.gpu.as_of),),
    )


def _judge(busy: float, memory_share: float) -> tuple[str, str]:
    if memory_share > HIGH_MEMORY_SHARE:
        return "too small", f"p99 of memory is {memory_share:.0%} of the device"
    if busy > HIGH_UTILISATION:
        return "too small", f"p95 of GPU utilisation is {busy:.0%}"
    if busy < LOW_UTILISATION:
        return (
            "too big",
            f"p95 of GPU utilisation is {busy:.0%} and {memory_share:.0%} of memory is used",
        )
    return "fine", f"p95 of GPU utilisation is {busy:.0%}, memory {memory_share:.0%}"


def _verdict(now: Machine, judgement: str, reason: str, best: Option | None) -> str:
    sentence = f"{now.name} is {judgement}: {reason}."
    if judgement == "fine" or best is None or best.usd_per_hour is None or now.usd_per_hour is None:
        return sentence
    change = best.usd_per_hour / now.usd_per_hour - 1
    return f"{sentence} Move to {best.name} at ${best.usd_per_hour:.2f} per hour ({change:+.0%})."


def _alternatives(
    catalog: Catalog, region: str, now: Machine, busy: float, held: float
) -> tuple[list[Option], list[Rejected]]:
    """Machines with headroom for the memory and the arithmetic in use, cheapest first."""
    machines, _ = machines_for(catalog, region)
    need_bytes = held * HEADROOM
    headroom = HEADROOM if busy <= HIGH_UTILISATION else OVERLOAD_HEADROOM
    need_flops = (now.gpu.half_flops or 0.0) * now.gpus * min(busy, 1.0) * headroom
    fits, rejected = [], []
    for machine in machines:
        flops = (machine.gpu.half_flops or 0.0) * machine.gpus
        if machine.gpu.memory_bytes < need_bytes:
            have = machine.gpu.memory_bytes / GIB
            reason = f"{have:.1f} GiB per GPU, needs {need_bytes / GIB:.1f} GiB"
            rejected.append(Rejected(machine.name, reason, have, need_bytes / GIB, "GiB"))
        elif flops < need_flops:
            reason = f"{flops / 1e12:.0f} TFLOP/s, needs {need_flops / 1e12:.0f}"
            rejected.append(Rejected(machine.name, reason, flops / 1e12, need_flops / 1e12, "TFLOP/s"))
        else:
            fits.append((machine, flops))
    fits.sort(key=lambda pair: pair[0].usd_per_hour or 0.0)
    options = [_option(i, machine, now, busy, flops) for i, (machine, flops) in enumerate(fits, start=1)]
    return options, rejected


def _option(position: int, machine: Machine, now: Machine, busy: float, flops: float) -> Option:
    used = busy * (now.gpu.half_flops or 0.0) * now.gpus / flops
    return Option(
        rank=position,
        name=machine.name,
        gpu=machine.gpu.name,
        gpus_per_replica=machine.gpus,
        replicas=1,
        instances=1,
        seconds=0.0,
        low=0.0,
        high=0.0,
        latency_p95=0.0,
        utilisation=used,
        usd_per_hour=machine.usd_per_hour,
        usd_per_day=(machine.usd_per_hour or 0.0) * 24,
        usd_per_unit=machine.usd_per_hour,
        placement="same software",
        peak_bytes=0.0,
    )
