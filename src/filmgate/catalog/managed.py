"""Managed video and text APIs: price, regions and life-cycle state."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from filmgate.catalog.records import Amount, IsoDate, Positive, PositiveCount

SLACK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class VideoApi:
    """A managed video model, billed per second of video in clips of fixed lengths."""

    id: str
    name: str
    state: Literal["active", "legacy", "retired"]
    regions: tuple[str, ...]
    max_height: PositiveCount
    clip_seconds: Annotated[tuple[PositiveCount, ...], Field(min_length=1)]
    usd_per_second: Amount
    source: str
    as_of: IsoDate
    end_of_life: IsoDate | None = None
    typical_seconds: Positive | None = None
    concurrency: PositiveCount | None = None
    note: str | None = None

    @property
    def is_available(self) -> bool:
        return self.state == "active"

    def usd_per_clip(self, seconds: float) -> float:
        """The price of the fewest seconds of whole clips that cover a length: 10 s are 5 + 5, not 9 + 5.

        A length may be exceeded by SLACK_SECONDS: 81 frames at 16 per second count as five seconds.
        """
        need = math.ceil(max(seconds - SLACK_SECONDS, 0.001))
        is_sum = [True]
        while not (is_sum[-1] and len(is_sum) > need):
            total = len(is_sum)
            is_sum.append(any(length <= total and is_sum[total - length] for length in self.clip_seconds))
        return (len(is_sum) - 1) * self.usd_per_second


@dataclass(frozen=True, slots=True)
class TextApi:
    """A managed language model, billed per million tokens. `model` is its id in the catalog."""

    id: str
    name: str
    region: str
    usd_per_million_input: Amount
    usd_per_million_output: Amount
    source: str
    as_of: IsoDate
    model: str | None = None
