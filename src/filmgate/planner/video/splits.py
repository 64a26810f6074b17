"""One clip on some GPUs of a machine: a placement that fits, and its time with an interval."""

import math
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import GIB, GIGA
from filmgate.catalog.precisions import bytes_per_value
from filmgate.planner.intervals import video_spread
from filmgate.planner.machines import Machine
from filmgate.planner.video.clip_time import ClipTime, clip_time
from filmgate.planner.video.memory import Placement, PlacementFit, first_fit, offloaded_bytes
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.rates import StageTime

HOST_RESERVE_GIB = 8.0


@dataclass(frozen=True, slots=True)
class Split:
    """A clip on some GPUs of a machine. `low` and `high` are the interval of its seconds."""

    gpus: int
    fit: PlacementFit
    time: ClipTime
    low: float
    high: float

    @property
    def seconds(self) -> float:
        return self.time.seconds


def try_split(question: VideoQuestion, machine: Machine, gpus: int, calibration: Calibration) -> Split | None:
    """A split over `gpus` GPUs, or None if it does not fit."""
    fit = fit_memory(question, machine, gpus)
    if fit is None:
        return None
    time = machine_time(question, machine, gpus, fit.placement, calibration)
    half, _ = video_spread(machine.gpu, calibration)
    return Split(gpus, fit, time, time.seconds * math.exp(-half), time.seconds * math.exp(half))


def fit_memory(question: VideoQuestion, machine: Machine, gpus: int) -> PlacementFit | None:
    """The first placement that fits. Weights are sharded only where whole weights do not fit."""
    model, clip, factor = question.model, question.clip, question.safety_factor
    base = Placement(weights=question.precision, gpus=gpus)
    capacity = machine.gpu.memory_bytes / question.budget_margin
    fit = first_fit(model, clip, base, capacity, factor)
    if fit is None and gpus > 1:
        fit = first_fit(model, clip, replace(base, is_sharded=True), capacity, factor)
    if fit and machine.instance and fit.placement.offload != "none":
        host = offloaded_bytes(model, fit.placement) * (machine.gpus / gpus) / GIB
        if host > machine.instance.ram_gib - HOST_RESERVE_GIB:
            return None
    return fit


def machine_time(
    question: VideoQuestion, machine: Machine, gpus: int, placement: Placement, calibration: Calibration
) -> ClipTime:
    """The stages of a clip. Offloaded weights cross PCIe once, and offloaded layers in every pass."""
    software = replace(question.software(placement.offload), is_tiled=placement.is_tiled)
    time = clip_time(question.model, question.clip, machine.gpu, gpus, software, calibration.constants)
    if placement.offload == "none":
        return time
    rate = (machine.gpu.pcie_gb_s or 16.0) / 2 * GIGA
    moved = offloaded_bytes(question.model, placement)
    if placement.offload == "layers":
        one_pass = question.model.denoiser.params * bytes_per_value(placement.weights)
        moved += one_pass * (question.clip.passes - 1)
    first, *rest = time.stages
    waited = first.interconnect + moved / rate
    return ClipTime((StageTime(first.stage, first.compute, first.memory, waited), *rest))
