"""The parts of the roofline that video and language models share: the bound, and arithmetic density.

Kernels reach a smaller share of the peak on a GPU with more arithmetic per multiprocessor:
share = exp(a) * density ** -gamma. The constants are fitted to runs (validation/fit.py).
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
