"""The planner's fitted constants, as the last validation wrote them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """Logarithms of efficiencies and overheads, and how far held-out runs fell from the prediction."""

    constants: Mapping[str, float]
    video_spread: float
    llm_spread: float
    seen_gpus: tuple[str, ...]
    source: str
    as_of: str
