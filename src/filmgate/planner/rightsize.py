"""Judges a machine from its GPU metrics: too big, too small or fine, and which machine would fit."""

from dataclasses import dataclass

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB, Gpu
from filmgate.catalog.utilisation import Utilisation
from filmgate.planner.answer import Answer, MemoryAnswer, Option, Rejected, dated_source
from filmgate.planner.fleet.answer import UtilisationAnswer
from filmgate.planner.machines import Machine, machines_for
from filmgate.planner.memory import MemoryLine
from filmgate.planner.percentiles import percentile

LOW_UTILISATION = 0.40
HIGH_UTILISATION = 0.80
HIGH_MEMORY_SHARE = 0.92
PREALLOCATED_SHARE = 0.70
PREALLOCATED_CHANGE = 0.02  # engines reserve memory once; a load that needs it changes by more
HEADROOM = 1.2
NO_MEMORY = "memory is not recorded, so a replacement needs as much"
OVERLOAD_HEADROOM = 1.5


def plan_rightsize(
    samples: Utilisation,
    catalog: Catalog,
    region: str,
    *,
    gpu: Gpu | None = None,
    instance: str | None = None,
    source: str = "",
) -> Answer:
    """The verdict on the current machine, and the machines that can carry the same load."""
    machines, unusable = machines_for(catalog, region, gpu=gpu, names=[instance] if instance else [])
    if not machines:
        reason = unusable[0].reason if unusable else "unknown machine"
        return Answer("rightsize", "hour", f"Cannot judge: {reason}.", is_possible=False)
    now = machines[0]
    load = _load(samples, float(now.gpu.memory_bytes))
    if load.memory_share > 1:
        reason = f"the file has {load.held / GIB:.1f} GiB per GPU in use, more than {now.gpu.name} has"
        return Answer("rightsize", "hour", f"Cannot judge: {reason}.", is_possible=False)
    judgement, reason = _judge(load)
    options, rejected = _alternatives(catalog, region, now, load)
    best = next((o for o in options if o.name != now.name), None)
    line = MemoryLine("p99 of memory in use", load.held, ("serving",), False)
    origin = f" of {source}" if source else ""
    return Answer(
        question=f"is {now.name} the right size, by {len(samples.gpu_share)} samples{origin}",
        unit="hour",
        verdict=_verdict(now, judgement, reason, best),
        is_possible=True,
        memory=(
            MemoryAnswer((line,), load.held, "serving", load.capacity, HEADROOM, now.name)
            if load.is_memory_known
            else None
        ),
        fleet=UtilisationAnswer(
            samples=len(samples.gpu_share),
            gpu_p50=percentile(samples.gpu_share, 0.5),
            gpu_p95=load.gpu,
            memory_p99_bytes=load.held,
            memory_share=load.memory_share,
            sm_p95=load.sm,
            dram_p95=load.dram,
            judgement=judgement,
        ),
        options=tuple(options),
        rejected=tuple(rejected),
        sources=(dated_source("GPU", now.gpu.name, now.gpu.source, now.gpu.as_of),),
    )


@dataclass(frozen=True, slots=True)
class Load:
    """p95 of what the GPU does, and the memory that it holds. `sm` and `dram` are None if not recorded.

    GPU utilisation only says that some kernel ran. SM and DRAM activity are the load where they are recorded.
    """

    gpu: float
    sm: float | None
    dram: float | None
    held: float
    capacity: float
    is_preallocated: bool
    is_memory_known: bool = True

    @property
    def activity(self) -> float:
        """The busier of arithmetic and memory."""
        measured = [value for value in (self.sm, self.dram) if value is not None]
        return max(measured, default=self.gpu)

    @property
    def memory_share(self) -> float:
        return self.held / self.capacity

    @property
    def need_bytes(self) -> float:
        """Memory that a replacement must have. What an engine reserves says nothing about its need.

        Without a record it is what the machine has.
        """
        return self.capacity * 0.98 if self.is_preallocated else self.held * HEADROOM

    @property
    def headroom(self) -> float:
        return HEADROOM if self.activity <= HIGH_UTILISATION else OVERLOAD_HEADROOM


def _load(samples: Utilisation, capacity: float) -> Load:
    memory = samples.memory_bytes
    held, lowest = (percentile(memory, 0.99), percentile(memory, 0.05)) if memory else (0.0, 0.0)
    is_flat = held - lowest <= PREALLOCATED_CHANGE * held
    return Load(
        gpu=percentile(samples.gpu_share, 0.95),
        sm=percentile(samples.sm_share, 0.95) if samples.sm_share else None,
        dram=percentile(samples.dram_share, 0.95) if samples.dram_share else None,
        held=held,
        capacity=capacity,
        is_preallocated=not memory or (is_flat and held > PREALLOCATED_SHARE * capacity),
        is_memory_known=bool(memory),
    )


def _judge(load: Load) -> tuple[str, str]:
    share = f"{load.memory_share:.0%} of memory is used" if load.is_memory_known else NO_MEMORY
    what = f"p95 of GPU utilisation is {load.gpu:.0%}"
    if load.sm is not None or load.dram is not None:
        parts = (("SM", load.sm), ("DRAM", load.dram))
        active = ", ".join(f"{name} active {value:.0%}" for name, value in parts if value is not None)
        what = f"{what} ({active})"
    if load.memory_share > HIGH_MEMORY_SHARE and not load.is_preallocated:
        return "too small", f"p99 of memory is {load.memory_share:.0%} of the device"
    if load.activity > HIGH_UTILISATION:
        return "too small", what
    if load.gpu > HIGH_UTILISATION and load.activity < LOW_UTILISATION:
        return "starved", f"{what}: kernels wait for the host; look at the CPU and at batching"
    if max(load.gpu, load.activity) < LOW_UTILISATION:
        return "too big", f"{what} and {share}"
    return "fine", f"{what} and {share}"


def _verdict(now: Machine, judgement: str, reason: str, best: Option | None) -> str:
    sentence = f"{now.name} is {judgement}: {reason}."
    if (
        judgement in ("fine", "starved")
        or best is None
        or best.usd_per_hour is None
        or now.usd_per_hour is None
    ):
        return sentence
    change = best.usd_per_hour / now.usd_per_hour - 1
    return f"{sentence} Move to {best.name} at ${best.usd_per_hour:.2f} per hour ({change:+.0%})."


def _alternatives(
    catalog: Catalog, region: str, now: Machine, load: Load
) -> tuple[list[Option], list[Rejected]]:
    """Machines with headroom for the memory, the arithmetic and the bandwidth in use, cheapest first."""
    machines, unusable = machines_for(catalog, region)
    need_bytes = load.need_bytes
    busy, moved = (load.gpu if value is None else value for value in (load.sm, load.dram))
    need_flops = (now.gpu.half_flops or 0.0) * now.gpus * busy * load.headroom
    need_bandwidth = (now.gpu.bandwidth or 0.0) * now.gpus * moved * load.headroom
    fits, rejected = [], []
    for machine in machines:
        flops = (machine.gpu.half_flops or 0.0) * machine.gpus
        bandwidth = (machine.gpu.bandwidth or 0.0) * machine.gpus
        if machine.gpu.memory_bytes < need_bytes:
            have = machine.gpu.memory_bytes / GIB
            reason = f"{have:.1f} GiB per GPU, needs {need_bytes / GIB:.1f} GiB"
            rejected.append(Rejected(machine.name, reason, have, need_bytes / GIB, "GiB"))
        elif flops < need_flops:
            reason = f"{flops / 1e12:.0f} TFLOP/s, needs {need_flops / 1e12:.0f}"
            rejected.append(Rejected(machine.name, reason, flops / 1e12, need_flops / 1e12, "TFLOP/s"))
        elif bandwidth < need_bandwidth:
            reason = f"{bandwidth / 1e9:.0f} GB/s, needs {need_bandwidth / 1e9:.0f}"
            rejected.append(Rejected(machine.name, reason, bandwidth / 1e9, need_bandwidth / 1e9, "GB/s"))
        else:
            fits.append((machine, flops))
    fits.sort(key=lambda pair: pair[0].usd_per_hour or 0.0)
    options = [_option(i, machine, now, busy, flops) for i, (machine, flops) in enumerate(fits, start=1)]
    return options, [*rejected, *unusable]


def _option(position: int, machine: Machine, now: Machine, busy: float, flops: float) -> Option:
    used = busy * (now.gpu.half_flops or 0.0) * now.gpus / flops
    return Option(
        rank=position,
        name=machine.name,
        gpu=machine.gpu.name,
        gpus_per_replica=machine.gpus,
        utilisation=used,
        usd_per_hour=machine.usd_per_hour,
        usd_per_day=(machine.usd_per_hour or 0.0) * 24,
        usd_per_unit=machine.usd_per_hour,
        placement="same software",
    )
