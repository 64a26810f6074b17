"""The planner's fitted constants, as `filmgate plan validate --calibration` writes them."""

from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.catalog.records import Amount, IsoDate, Number


@dataclass(frozen=True, slots=True)
class Calibration:
    """Logarithms of efficiencies and overheads.

    The spreads are the 80 % quantile of the log error on held-out runs. `seen_gpus` have at least one run
    of a video model, `seen_llm_gpus` of a language model.
    """

    constants: Mapping[str, Number]
    video_spread: Amount
    llm_spread: Amount
    seen_gpus: tuple[str, ...]
    source: str
    as_of: IsoDate
    seen_llm_gpus: tuple[str, ...] = ()
