"""What video and language models share of the roofline: the bound, and the arithmetic density of a GPU.

Kernels reach a share of the peak that falls as a GPU packs more arithmetic into each multiprocessor:
share = exp(a) * density ** -gamma. The constants come from runs (calibration.py).
"""

from enum import StrEnum

from filmgate.catalog.gpus import Gpu

REFERENCE_DENSITY = 3e12  # FLOP/s per multiprocessor; also assumed where the count is unknown
MAX_SHARE_OF_PEAK = 0.95


class Bound(StrEnum):
    """The resource that takes most of the time."""

    COMPUTE = "compute"
    MEMORY = "memory"
    INTERCONNECT = "interconnect"


def density(gpu: Gpu) -> float:
    """Dense half-precision FLOP/s per multiprocessor."""
    if gpu.half_flops is None or gpu.sm_count is None:
        return REFERENCE_DENSITY
    return gpu.half_flops / gpu.sm_count
