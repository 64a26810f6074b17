"""Predicted seconds of a job, from completed jobs of the same model or from its card."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from filmgate.jobs import Route, StageSeconds, VideoSpec
from filmgate.models.cards import ModelCard, Rates
from filmgate.models.quality import full_steps
from filmgate.scheduling.base import JobReader
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


def learn(card: ModelCard, measurements: Sequence[Measurement], route: Route) -> Rates:
    """A weighted mean of the card's rates and the median of the measured rates."""
    mine = [m for m in measurements if m.route is route]
    if not mine:
        return card.rates
    units = [work_units(m.spec) for m in mine]
    steps = [_full_steps(m.spec, card) for m in mine]
    per_unit = [m.measured.denoise / (u * s) for m, u, s in zip(mine, units, steps, strict=True)]
    return Rates(
        text=_blend(card.rates.text, [m.measured.text for m in mine]),
        denoise=_blend(card.rates.denoise, per_unit),
        decode=_blend(card.rates.decode, [m.measured.decode / u for m, u in zip(mine, units, strict=True)]),
        upload=_blend(card.rates.upload, [m.measured.upload for m in mine]),
    )


def _full_steps(spec: VideoSpec, card: ModelCard) -> float:
    limits = card.limits
    guidance = limits.guidance.default if spec.guidance is None else spec.guidance
    return full_steps(spec.quality, spec.steps or limits.steps.default, has_guidance=guidance > 1)


def _blend(prior: float, measured: list[float]) -> float:
    share = len(measured) / (len(measured) + PRIOR_WEIGHT)
    return (1 - share) * prior + share * median(measured)


@dataclass(frozen=True, slots=True)
class _Learned:
    rates: Rates
    at: float


class Estimator:
    """Predictions per model and route, from measurements that are read again every few seconds."""

    def __init__(self, reader: JobReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._learned: dict[tuple[str, Route], _Learned] = {}
        self._lock = threading.Lock()

    def estimate(self, spec: VideoSpec, card: ModelCard, route: Route = Route.GPU) -> StageSeconds:
        """Predicted seconds of this spec."""
        return predict(spec, self._rates(card, route), _full_steps(spec, card))

    def _rates(self, card: ModelCard, route: Route) -> Rates:
        key = (card.name, route)
        with self._lock:
            known = self._learned.get(key)
            if known is not None and self._clock() - known.at < REFRESH_SECONDS:
                return known.rates
            rates = learn(card, self._reader.measurements(card.name), route)
            self._learned[key] = _Learned(rates, self._clock())
            return rates
