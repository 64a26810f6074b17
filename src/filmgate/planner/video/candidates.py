"""Video questions, and the machines that can render the clip: placement, time, fleet and cost of each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import GIB, GIGA, Gpu
from filmgate.catalog.video_models import VideoModel
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.money import Bill, bill
from filmgate.planner.fleet.queueing import MAX_SERVERS
from filmgate.planner.fleet.sizing import BOOT_SECONDS, Fleet, cold_starts, size_fleet, with_cold_starts
from filmgate.planner.fleet.traffic import Traffic, TrafficShape, traffic_of
from filmgate.planner.machines import Machine
from filmgate.planner.memory import SAFETY_FACTOR
from filmgate.planner.video.clip import ClipShape
from filmgate.planner.video.clip_time import ClipTime, clip_time
from filmgate.planner.video.memory import Placement, PlacementFit, first_fit, offloaded_bytes, weight_bytes
from filmgate.planner.video.rates import Software, StageTime

UNSEEN_GPU_FACTOR = 1.5
HOST_RESERVE_GIB = 8.0


@dataclass(frozen=True, slots=True)
class VideoQuestion:
    """What to plan for. Without `clips_per_day` the cost is that of a machine that is always busy."""

    model: VideoModel
    clip: ClipShape
    region: str = "us-east-1"
    clips_per_day: float | None = None
    slo_seconds: float | None = None
    shape: TrafficShape = TrafficShape.STEADY
    precision: str = "bf16"
    mode: str = "eager"
    gpu: Gpu | None = None
    instances: tuple[str, ...] = ()
    residency: str | None = None
    commit_discount: float | None = None
    interruptible_share: float = 0.0
    tenants: int = 1
    adapters: int = 1
    safety_factor: float = SAFETY_FACTOR

    def software(self) -> Software:
        return Software(mode=self.mode, precision=self.precision, has_fast_decoder=True)

    def traffic(self, clips_per_day: float | None = None) -> Traffic | None:
        volume = clips_per_day if clips_per_day is not None else self.clips_per_day
        return traffic_of(volume, self.shape) if volume is not None else None


@dataclass(frozen=True, slots=True)
class Split:
    """A clip split over some GPUs of a machine: a placement that fits, and its time."""

    gpus: int
    fit: PlacementFit
    time: ClipTime

    @property
    def seconds(self) -> float:
        return self.time.seconds


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine and a split that meet the requirements."""

    machine: Machine
    split: Split
    fleet: Fleet | None
    bill: Bill | None

    @property
    def seconds(self) -> float:
        return self.split.seconds

    @property
    def usd_per_busy_clip(self) -> float | None:
        """The cost of a clip on a machine that is always busy."""
        hourly = self.machine.usd_per_hour
        if hourly is None:
            return None
        return hourly / 3600 * self.seconds * self.split.gpus / self.machine.gpus

    def usd_per_clip(self, question: VideoQuestion) -> float | None:
        if self.bill and question.clips_per_day:
            return self.bill.usd_per_unit(question.clips_per_day)
        return self.usd_per_busy_clip


def spread(gpu: Gpu, calibration: Calibration) -> tuple[float, bool]:
    """Half-width of the interval as a logarithm, and whether it is wider because the GPU has no runs."""
    is_seen = gpu.name in calibration.seen_gpus
    return calibration.video_spread * (1.0 if is_seen else UNSEEN_GPU_FACTOR), not is_seen


def interval(candidate: Candidate, calibration: Calibration) -> tuple[float, float]:
    """The lowest and highest expected seconds per clip."""
    half, _ = spread(candidate.machine.gpu, calibration)
    return candidate.seconds * math.exp(-half), candidate.seconds * math.exp(half)


def evaluate(question: VideoQuestion, machine: Machine, calibration: Calibration) -> Candidate | Rejected:
    """The cheapest split of one machine that meets the requirements, or why there is none."""
    counts = [n for n in (1, 2, 4, 8) if n <= machine.gpus]
    splits = [s for gpus in counts if (s := try_split(question, machine, gpus, calibration.constants))]
    if not splits:
        return _too_small(question, machine, counts[-1])
    slo = question.slo_seconds
    quick = [split for split in splits if slo is None or split.seconds <= slo]
    if not quick:
        best = min(splits, key=lambda split: split.seconds)
        gpus = f"{best.gpus} GPUs" if best.gpus > 1 else "one GPU"
        reason = f"a clip takes {best.seconds:.0f} s on {gpus}, the SLO is {slo:g} s"
        return Rejected(machine.name, reason, best.seconds, slo, "s")
    candidates = [_candidate(question, machine, split) for split in quick]
    sized = [c for c in candidates if c.fleet is not None or question.traffic() is None]
    if not sized:
        reason = f"{question.clips_per_day:g} clips per day need more than {MAX_SERVERS} replicas"
        return Rejected(machine.name, reason, question.clips_per_day, None, "clips/day")
    return min(sized, key=lambda c: (c.usd_per_clip(question) or 0.0, c.seconds))


def try_split(
    question: VideoQuestion, machine: Machine, gpus: int, constants: Mapping[str, float]
) -> Split | None:
    """A split over `gpus` GPUs, or None if it does not fit."""
    fit = fit_memory(question, machine, gpus)
    if fit is None:
        return None
    return Split(gpus, fit, machine_time(question, machine, gpus, fit.placement, constants))


def fit_memory(question: VideoQuestion, machine: Machine, gpus: int) -> PlacementFit | None:
    """The first placement that fits. Weights are sharded only where whole weights do not fit."""
    model, clip, factor = question.model, question.clip, question.safety_factor
    base = Placement(weights=question.precision, gpus=gpus)
    capacity = machine.gpu.memory_bytes
    fit = first_fit(model, clip, base, capacity, factor)
    if fit is None and gpus > 1:
        fit = first_fit(model, clip, replace(base, is_sharded=True), capacity, factor)
    if fit and machine.instance and fit.placement.offload != "none":
        host = offloaded_bytes(model, fit.placement) * (machine.gpus / gpus) / GIB
        if host > machine.instance.ram_gib - HOST_RESERVE_GIB:
            return None
    return fit


def machine_time(
    question: VideoQuestion,
    machine: Machine,
    gpus: int,
    placement: Placement,
    constants: Mapping[str, float],
) -> ClipTime:
    """The stages of a clip. The transfer of offloaded weights over PCIe is added to the first stage."""
    software = replace(question.software(), is_tiled=placement.is_tiled)
    time = clip_time(question.model, question.clip, machine.gpu, gpus, software, constants)
    if placement.offload == "none":
        return time
    moved = offloaded_bytes(question.model, placement) / ((machine.gpu.pcie_gb_s or 16.0) / 2 * GIGA)
    first, *rest = time.stages
    return ClipTime((StageTime(first.stage, first.compute, first.memory, first.interconnect + moved), *rest))


def _candidate(question: VideoQuestion, machine: Machine, split: Split) -> Candidate:
    traffic = question.traffic()
    if traffic is None:
        return Candidate(machine, split, None, None)
    per_instance = machine.gpus // split.gpus
    fleet = size_fleet(traffic, split.seconds, question.slo_seconds, split.gpus, per_instance)
    cost = None
    if fleet and machine.usd_per_hour is not None:
        cold = cold_start_within_slo(question, machine, split.seconds)
        cost = bill(fleet, traffic, machine.usd_per_hour, service=split.seconds, cold_seconds=cold)
        fleet = with_cold_starts(fleet, cost.cold_share, split.seconds + (cold or 0.0))
    return Candidate(machine, split, fleet, cost)


def cold_seconds(question: VideoQuestion, machine: Machine) -> float:
    """The slowest cold start of this machine."""
    weights = weight_bytes(question.model, question.precision)
    starts = cold_starts(weights, machine.instance, machine.gpu)
    return max((start.total_seconds for start in starts), default=BOOT_SECONDS)


def cold_start_within_slo(question: VideoQuestion, machine: Machine, seconds: float) -> float | None:
    """The slowest cold start, or None if a clip that waits for it misses the SLO."""
    cold = cold_seconds(question, machine)
    return cold if question.slo_seconds is None or cold + seconds <= question.slo_seconds else None


def _too_small(question: VideoQuestion, machine: Machine, gpus: int) -> Rejected:
    """The memory that the smallest placement needs and the GPU or the host lacks."""
    model = question.model
    smallest = Placement(
        weights=question.precision, offload="model", is_tiled=True, gpus=gpus, is_sharded=gpus > 1
    )
    fit = first_fit(model, question.clip, smallest, math.inf, question.safety_factor)
    need = fit.memory.peak_bytes if fit else math.inf
    have = float(machine.gpu.memory_bytes)
    if need <= have and machine.instance:
        host = offloaded_bytes(model, smallest) * (machine.gpus / gpus) / GIB
        ram = machine.instance.ram_gib
        reason = f"offloading needs {host:.0f} GiB of host memory, the instance has {ram:g} GiB"
        return Rejected(machine.name, reason, host, ram, "GiB")
    stage = fit.memory.peak_stage if fit else "denoise"
    held = f"{machine.gpu.name} has {have / GIB:.1f} GiB"
    reason = f"{stage} needs {need / GIB:.1f} GiB per GPU even offloaded and tiled, {held}"
    return Rejected(machine.name, reason, need / GIB, have / GIB, "GiB")


def daily_cost(question: VideoQuestion, candidate: Candidate, clips_per_day: float) -> float | None:
    """USD per day of the same machine and split at another volume."""
    traffic = question.traffic(clips_per_day)
    hourly = candidate.machine.usd_per_hour
    if traffic is None or hourly is None:
        return None
    gpus, seconds = candidate.split.gpus, candidate.seconds
    fleet = size_fleet(traffic, seconds, question.slo_seconds, gpus, candidate.machine.gpus // gpus)
    if fleet is None:
        return None
    cold = cold_start_within_slo(question, candidate.machine, seconds)
    return bill(fleet, traffic, hourly, service=seconds, cold_seconds=cold).usd_per_day


def rank(question: VideoQuestion, candidates: list[Candidate]) -> list[Candidate]:
    """Cheapest clip first. Machines without a price come last, fastest first."""
    return sorted(candidates, key=lambda c: (c.usd_per_clip(question) or math.inf, c.seconds))
