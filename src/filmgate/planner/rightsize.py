"""From a week of GPU metrics: too big, too small, or fine; and the machine that would fit."""

from collections.abc import Sequence

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.utilisation import Utilisation
from filmgate.planner.answer import Answer, Json, MemoryAnswer, MemoryPart, Option, Rejected
from filmgate.planner.machines import Machine, machines_for
from filmgate.planner.video.memory import GIB

IDLE = 0.40
BUSY = 0.90
FULL = 0.92
ROOM = 1.2


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def plan_rightsize(
    samples: Utilisation,
    catalog: Catalog,
    region: str,
    *,
    gpu: Gpu | None = None,
    instance: str | None = None,
) -> Answer:
    """The verdict on what runs now, and cheaper or larger machines that hold the same load."""
    machines, refused = machines_for(catalog, region, gpu=gpu, names=[instance] if instance else [])
    if not machines:
        reason = refused[0].reason if refused else "unknown machine"
        return Answer(
            "rightsize", "hour", f"Cannot judge: {reason}.", False, None, None, None, None, (), (), ()
        )
    now = machines[0]
    busy = percentile(samples.gpu_share, 0.95)
    held = percentile(samples.memory_bytes, 0.99)
    capacity = float(now.gpu.memory_bytes)
    judgement, why = _judge(busy, held / capacity)
    options, rejected = _alternatives(catalog, region, now, busy, held)
    facts: Json = {
        "samples": len(samples.gpu_share),
        "gpu_p50": percentile(samples.gpu_share, 0.5),
        "gpu_p95": busy,
        "memory_p99_bytes": held,
        "memory_share": held / capacity,
        "sm_p95": percentile(samples.sm_share, 0.95) if samples.sm_share else None,
        "dram_p95": percentile(samples.dram_share, 0.95) if samples.dram_share else None,
        "judgement": judgement,
    }
    best = next((o for o in options if o.name != now.name), None)
    return Answer(
        question=f"is {now.name} the right size for a week of {len(samples.gpu_share)} samples",
        unit="hour",
        verdict=_verdict(now, judgement, why, best),
        is_possible=True,
        memory=MemoryAnswer(
            (MemoryPart("p99 of memory in use", held, ("serving",), False),),
            held,
            "serving",
            capacity,
            ROOM,
            now.name,
        ),
        time=None,
        fleet=facts,
        cost=None,
        options=tuple(options),
        rejected=tuple(rejected),
        sources=(f"GPU {now.gpu.name}: {now.gpu.source} ({now.gpu.as_of})",),
    )


def _judge(busy: float, full: float) -> tuple[str, str]:
    if full > FULL:
        return "too small", f"memory p99 is {full:.0%} of the device"
    if busy > BUSY:
        return "too small", f"the GPU is busy {busy:.0%} of the time at p95"
    if busy < IDLE:
        return (
            "too big",
            f"the GPU is busy only {busy:.0%} of the time at p95 and {full:.0%} of memory is used",
        )
    return "fine", f"busy {busy:.0%} at p95, memory {full:.0%}"


def _verdict(now: Machine, judgement: str, why: str, best: Option | None) -> str:
    sentence = f"{now.name} is {judgement}: {why}."
    if judgement == "fine" or best is None or best.usd_per_hour is None or now.usd_per_hour is None:
        return sentence
    change = best.usd_per_hour / now.usd_per_hour - 1
    return f"{sentence} Move to {best.name} at ${best.usd_per_hour:.2f} an hour ({change:+.0%})."


def _alternatives(
    catalog: Catalog, region: str, now: Machine, busy: float, held: float
) -> tuple[list[Option], list[Rejected]]:
    """Machines with room for the memory seen and the arithmetic done, cheapest first."""
    machines, _ = machines_for(catalog, region)
    need_bytes = held * ROOM
    need_flops = (now.gpu.half_flops or 0.0) * now.gpus * min(busy, 1.0) * (ROOM if busy <= BUSY else 1.5)
    fits, rejected = [], []
    for machine in machines:
        flops = (machine.gpu.half_flops or 0.0) * machine.gpus
        if machine.gpu.memory_bytes < need_bytes:
            have = machine.gpu.memory_bytes / GIB
            reason = f"{have:.1f} GiB a GPU, {need_bytes / GIB:.1f} GiB needed"
            rejected.append(Rejected(machine.name, reason, have, need_bytes / GIB, "GiB"))
        elif flops < need_flops:
            reason = f"{flops / 1e12:.0f} TFLOP/s, {need_flops / 1e12:.0f} needed"
            rejected.append(Rejected(machine.name, reason, flops / 1e12, need_flops / 1e12, "TFLOP/s"))
        else:
            fits.append((machine, flops))
    fits.sort(key=lambda pair: pair[0].usd_per_hour or 0.0)
    return [
        _option(place, machine, now, busy, flops) for place, (machine, flops) in enumerate(fits, 1)
    ], rejected


def _option(place: int, machine: Machine, now: Machine, busy: float, flops: float) -> Option:
    used = busy * (now.gpu.half_flops or 0.0) * now.gpus / flops
    return Option(
        rank=place,
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
