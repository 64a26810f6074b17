"""The width of an interval: that of the validation, and more for a GPU without runs."""

import math
from collections.abc import Collection

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import Gpu

UNSEEN_GPU_FACTOR = 1.5
UNPUBLISHED_RATE_FACTOR = 3.0


def video_spread(gpu: Gpu, calibration: Calibration) -> tuple[float, bool]:
    """Half-width as a logarithm, and whether it is wider because the GPU has no runs."""
    return _spread(calibration.video_spread, gpu, calibration.seen_gpus)


def llm_spread(gpu: Gpu, calibration: Calibration) -> tuple[float, bool]:
    """Half-width as a logarithm, and whether it is wider because the GPU has no runs."""
    return _spread(calibration.llm_spread, gpu, calibration.seen_llm_gpus)


def llm_upper_end(gpu: Gpu, calibration: Calibration) -> float:
    """The upper end of the interval of a language model's times, as a multiple of the expected time."""
    return math.exp(llm_spread(gpu, calibration)[0])


def widening(gpu: Gpu) -> str:
    """Why the interval of this GPU is wider."""
    return f"the catalog has {'no published rate of' if gpu.is_rate_estimated else 'no run on'} {gpu.name}"


def _spread(base: float, gpu: Gpu, seen: Collection[str]) -> tuple[float, bool]:
    if gpu.is_rate_estimated:
        return base * UNPUBLISHED_RATE_FACTOR, True
    return (base, False) if gpu.name in seen else (base * UNSEEN_GPU_FACTOR, True)
