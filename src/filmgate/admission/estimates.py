"""Predicted seconds of a job, from completed jobs of the same model or from its card; and the estimate of a
request that is not a job yet.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isinf
from statistics import median

from filmgate.jobs import Route, StageSeconds, Ticket, VideoSpec
from filmgate.models.cards import ModelCard, Rates
from filmgate.models.quality import full_steps
from filmgate.scheduling.base import JobReader
from filmgate.scheduling.forecast import Outlook
from filmgate.scheduling.records import Measurement

REFRESH_SECONDS = 10.0
# The card counts as much as this many completed jobs, so that one unusual job has little effect.
PRIOR_WEIGHT = 3


def work_units(spec: VideoSpec) -> float:
    """Megapixel-frames, which denoising and decoding are proportional to."""
    return spec.width * spec.height * spec.frames / 1e6


def predict(spec: VideoSpec, rates: Rates, steps: float) -> StageSeconds:
    """Seconds per stage at these rates. `steps` counts steps that compute every pass."""
    units = work_units(spec)
    return StageSeconds(
        text=rates.text,
        denoise=rates.denoise * units * steps,
        decode=rates.decode * units,
        upload=rates.upload,
    )


def learn(card: ModelCard, measurements: Sequence[Measurement]) -> Rates:
    """A weighted mean of the card's rates and the median of the measured rates."""
    if not measurements:
        return card.rates
    took = [each.measured for each in measurements]
    units = [work_units(each.spec) for each in measurements]
    steps = [_full_steps(each.spec, card) for each in measurements]
    per_unit = [t.denoise / (u * s) for t, u, s in zip(took, units, steps, strict=True)]
    return Rates(
        text=_blend(card.rates.text, [t.text for t in took]),
        denoise=_blend(card.rates.denoise, per_unit),
        decode=_blend(card.rates.decode, [t.decode / u for t, u in zip(took, units, strict=True)]),
        upload=_blend(card.rates.upload, [t.upload for t in took]),
    )


def _full_steps(spec: VideoSpec, card: ModelCard) -> float:
    limits = card.limits
    guidance = limits.guidance.default if spec.guidance is None else spec.guidance
    return full_steps(spec.quality, spec.steps or limits.steps.default, has_guidance=guidance > 1)


def _blend(prior: float, measured: list[float]) -> float:
    share = len(measured) / (len(measured) + PRIOR_WEIGHT)
    return (1 - share) * prior + share * median(measured)


class Estimator:
    """Predictions per model, from measurements that are read again every few seconds."""

    def __init__(self, reader: JobReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._learned: dict[str, tuple[float, Rates]] = {}  # by model: when it was learned, and the rates
        self._lock = threading.Lock()

    def estimate(self, spec: VideoSpec, card: ModelCard) -> StageSeconds:
        """Predicted seconds of this spec on local GPUs."""
        with self._lock:
            read_at, rates = self._learned.get(card.name, (-inf, card.rates))
            if self._clock() - read_at >= REFRESH_SECONDS:
                rates = learn(card, self._reader.measurements(card.name))
                self._learned[card.name] = self._clock(), rates
        return predict(spec, rates, _full_steps(spec, card))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The forecast of a routed ticket. Seconds are None while no live worker serves the model."""

    ticket: Ticket
    queue_position: int
    starts_in_seconds: float | None
    ready_in_seconds: float | None


def to_estimate(ticket: Ticket, outlook: Outlook) -> Estimate:
    """The estimate of a routed ticket, given its outlook on local GPUs.

    Until a live worker serves the model, nobody knows when the job would start.
    """
    slot = outlook.slot
    if ticket.route is Route.MANAGED:
        return Estimate(ticket, slot.position, 0.0, ticket.routing.expected_seconds)
    if outlook.workers == 0 or isinf(slot.starts_in):
        return Estimate(ticket, slot.position, None, None)
    return Estimate(ticket, slot.position, slot.starts_in, slot.starts_in + ticket.predicted.work_seconds)
