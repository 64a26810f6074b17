"""A video question answered: what fits, how fast, how many, what it costs, and why not the others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import GIGA, Gpu
from filmgate.catalog.video_models import VideoModel
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.money import Bill, bill
from filmgate.planner.fleet.queueing import MOST_SERVERS
from filmgate.planner.fleet.sizing import BOOT_SECONDS, GIB, Fleet, cold_starts, size_fleet, with_cold_starts
from filmgate.planner.fleet.traffic import Shape, Traffic, traffic_of
from filmgate.planner.machines import Machine
from filmgate.planner.roofline import Software, StageTime
from filmgate.planner.video.clip_time import ClipTime, clip_time
from filmgate.planner.video.memory import SAFETY_FACTOR, MemoryBudget, Placement, first_fit
from filmgate.planner.video.work import BYTES, Clip

UNSEEN_WIDENING = 1.5
HOST_RESERVE_GIB = 8.0


@dataclass(frozen=True, slots=True)
class VideoAsk:
    """A video question; without a volume the cost is that of a busy machine."""

    model: VideoModel
    clip: Clip
    region: str = "us-east-1"
    clips_per_day: float | None = None
    slo_seconds: float | None = None
    shape: Shape = Shape.STEADY
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
class Trial:
    """One split of a machine that has the memory, and the time it takes."""

    split: int
    rung: str
    placement: Placement
    memory: MemoryBudget
    time: ClipTime


@dataclass(frozen=True, slots=True)
class Candidate:
    """One machine and split that does the work."""

    machine: Machine
    trial: Trial
    fleet: Fleet | None
    bill: Bill | None

    @property
    def split(self) -> int:
        return self.trial.split

    @property
    def seconds(self) -> float:
        return self.trial.time.seconds

    @property
    def usd_per_busy_clip(self) -> float | None:
        """A clip's share of a machine that never idles."""
        hourly = self.machine.usd_per_hour
        if hourly is None:
            return None
        return hourly / 3600 * self.seconds * self.split / self.machine.gpus

    def usd_per_clip(self, ask: VideoAsk) -> float | None:
        if self.bill and ask.clips_per_day:
            return self.bill.per(ask.clips_per_day)
        return self.usd_per_busy_clip


def spread(gpu: Gpu, calibration: Calibration) -> tuple[float, bool]:
    """Half-width of the interval as a logarithm; wider for a GPU no run was seen on."""
    is_seen = gpu.name in calibration.seen_gpus
    return calibration.video_spread * (1.0 if is_seen else UNSEEN_WIDENING), not is_seen


def evaluate(ask: VideoAsk, machine: Machine, calibration: Calibration) -> Candidate | Rejected:
    """The cheapest split of one machine that does the work, or the number that rules it out."""
    splits = [n for n in (1, 2, 4, 8) if n <= machine.gpus]
    trials = [trial for split in splits if (trial := try_split(ask, machine, split, calibration.constants))]
    if not trials:
        return _too_small(ask, machine, splits[-1])
    slo = ask.slo_seconds
    quick = [trial for trial in trials if slo is None or trial.time.seconds <= slo]
    if not quick:
        best = min(trials, key=lambda trial: trial.time.seconds)
        gpus = f"{best.split} GPUs" if best.split > 1 else "one GPU"
        reason = f"a clip takes {best.time.seconds:.0f} s on {gpus}, the SLO is {slo:g} s"
        return Rejected(machine.name, reason, best.time.seconds, slo, "s")
    candidates = [_candidate(ask, machine, trial) for trial in quick]
    sized = [c for c in candidates if c.fleet is not None or ask.traffic() is None]
    if not sized:
        reason = f"{ask.clips_per_day:g} clips a day need more than {MOST_SERVERS} replicas"
        return Rejected(machine.name, reason, ask.clips_per_day, None, "clips/day")
    return min(sized, key=lambda c: (c.usd_per_clip(ask) or 0.0, c.seconds))


def try_split(ask: VideoAsk, machine: Machine, split: int, constants: Mapping[str, float]) -> Trial | None:
    """A split with its placement and time, or None where it has not the memory."""
    fitted = fit_memory(ask, machine, split)
    if fitted is None:
        return None
    rung, placement, found = fitted
    return Trial(split, rung, placement, found, machine_time(ask, machine, split, placement, constants))


def fit_memory(ask: VideoAsk, machine: Machine, split: int) -> tuple[str, Placement, MemoryBudget] | None:
    """The roomiest placement of a split; weights are sharded only where whole ones do not fit."""
    base = Placement(weights=ask.precision, gpus=split)
    capacity = machine.gpu.memory_bytes
    found = first_fit(ask.model, ask.clip, base, capacity, ask.safety_factor)
    if found is None and split > 1:
        found = first_fit(ask.model, ask.clip, replace(base, is_sharded=True), capacity, ask.safety_factor)
    if found and machine.instance and found[1].offload != "none":
        host = offloaded_bytes(ask, found[1]) * (machine.gpus / split) / GIB
        if host > machine.instance.ram_gib - HOST_RESERVE_GIB:
            return None
    return found


def offloaded_bytes(ask: VideoAsk, placement: Placement) -> float:
    """Weights that wait in host memory between their stages."""
    model = ask.model
    text = sum(encoder.params for encoder in model.text_encoders) * BYTES[placement.text_weights]
    if placement.offload == "text":
        return text
    net = model.denoiser
    return text + net.params * net.copies * BYTES[placement.weights] + model.vae.params * BYTES["bf16"]


def machine_time(
    ask: VideoAsk, machine: Machine, split: int, placement: Placement, constants: Mapping[str, float]
) -> ClipTime:
    """Stages of a clip, with the weights that travel over PCIe each time charged to the first."""
    software = replace(ask.software(), is_tiled=placement.is_tiled)
    time = clip_time(ask.model, ask.clip, machine.gpu, split, software, constants)
    if placement.offload == "none":
        return time
    moved = offloaded_bytes(ask, placement) / ((machine.gpu.pcie_gb_s or 16.0) / 2 * GIGA)
    first, *rest = time.stages
    return ClipTime((StageTime(first.stage, first.compute, first.memory, first.interconnect + moved), *rest))


def _candidate(ask: VideoAsk, machine: Machine, trial: Trial) -> Candidate:
    traffic = ask.traffic()
    if traffic is None:
        return Candidate(machine, trial, None, None)
    fleet = size_fleet(traffic, trial.time.seconds, ask.slo_seconds, trial.split, machine.gpus // trial.split)
    cost = None
    if fleet and machine.usd_per_hour is not None:
        cold = cold_if_allowed(ask, machine, trial.time.seconds)
        cost = bill(fleet, traffic, machine.usd_per_hour, service=trial.time.seconds, cold_seconds=cold)
        fleet = with_cold_starts(fleet, cost.cold_share, trial.time.seconds + (cold or 0.0))
    return Candidate(machine, trial, fleet, cost)


def weight_total(ask: VideoAsk) -> float:
    """Bytes a new replica loads."""
    net = ask.model.denoiser
    text = sum(encoder.params for encoder in ask.model.text_encoders)
    denoiser = (net.params * net.copies + net.extra_params) * BYTES[ask.precision]
    return denoiser + BYTES["bf16"] * (text + ask.model.vae.params)


def cold_seconds(ask: VideoAsk, machine: Machine) -> float:
    """The slowest way a new replica of this machine starts."""
    starts = cold_starts(weight_total(ask), machine.instance, machine.gpu)
    return max((start.total_seconds for start in starts), default=BOOT_SECONDS)


def cold_if_allowed(ask: VideoAsk, machine: Machine, seconds: float) -> float | None:
    """The cold start, where a clip that finds no replica still comes in time; else None."""
    cold = cold_seconds(ask, machine)
    return cold if ask.slo_seconds is None or cold + seconds <= ask.slo_seconds else None


def _too_small(ask: VideoAsk, machine: Machine, split: int) -> Rejected:
    """What the tightest placement still needs against what a GPU has, or the host memory it lacks."""
    tight = Placement(weights=ask.precision, offload="model", is_tiled=True, gpus=split, is_sharded=split > 1)
    fitted = first_fit(ask.model, ask.clip, tight, math.inf, ask.safety_factor)
    need = fitted[2].peak_bytes if fitted else math.inf
    have = float(machine.gpu.memory_bytes)
    if need <= have and machine.instance:
        host = offloaded_bytes(ask, tight) * (machine.gpus / split) / GIB
        ram = machine.instance.ram_gib
        reason = f"offloading needs {host:.0f} GiB of host memory, the instance has {ram:g} GiB"
        return Rejected(machine.name, reason, host, ram, "GiB")
    stage = fitted[2].peak_stage if fitted else "denoise"
    held = f"{machine.gpu.name} has {have / GIB:.1f} GiB"
    reason = f"{stage} needs {need / GIB:.1f} GiB a GPU even offloaded and tiled, {held}"
    return Rejected(machine.name, reason, need / GIB, have / GIB, "GiB")


def daily_cost(ask: VideoAsk, candidate: Candidate, clips_per_day: float) -> float | None:
    """USD a day of the same machine and split at another volume."""
    traffic = ask.traffic(clips_per_day)
    hourly = candidate.machine.usd_per_hour
    if traffic is None or hourly is None:
        return None
    per_instance = candidate.machine.gpus // candidate.split
    fleet = size_fleet(traffic, candidate.seconds, ask.slo_seconds, candidate.split, per_instance)
    if fleet is None:
        return None
    cold = cold_if_allowed(ask, candidate.machine, candidate.seconds)
    return bill(fleet, traffic, hourly, service=candidate.seconds, cold_seconds=cold).usd_per_day


def rank(ask: VideoAsk, candidates: list[Candidate]) -> list[Candidate]:
    """Cheapest clip first; a machine without a price ranks by time."""
    return sorted(candidates, key=lambda c: (c.usd_per_clip(ask) or math.inf, c.seconds))
