"""Predicted seconds of a job: from finished jobs of the same model, from its card until there are any."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from filmgate.jobs import Route, StageSeconds, VideoSpec
from filmgate.models.cards import ModelCard, Rates
from filmgate.scheduling.base import JobBook, Measurement

REFRESH_SECONDS = 10.0
# A card's guess weighs as much as this many finished jobs, so that one odd job does not move a promise far.
PRIOR_WEIGHT = 3


def work_units(spec: VideoSpec) -> float:
    """Megapixel-frames: what both denoising and decoding grow with."""
    return spec.width * spec.height * spec.frames / 1e6


def predict(spec: VideoSpec, rates: Rates, steps: int) -> StageSeconds:
    """Seconds of each stage at these rates."""
    units = work_units(spec)
    return StageSeconds(
        text=rates.text,
        denoise=rates.denoise * units * steps,
        decode=rates.decode * units,
        upload=rates.upload,
    )


def learn(card: ModelCard, measurements: Sequence[Measurement], route: Route) -> Rates:
    """The card's rates, drawn towards the median of what was measured."""
    mine = [m for m in measurements if m.route is route]
    if not mine:
        return card.rates
    units = [work_units(m.spec) for m in mine]
    steps = [m.spec.steps or card.limits.steps.default for m in mine]
    per_unit = [m.measured.denoise / (u * s) for m, u, s in zip(mine, units, steps, strict=True)]
    return Rates(
        text=_blend(card.rates.text, [m.measured.text for m in mine]),
        denoise=_blend(card.rates.denoise, per_unit),
        decode=_blend(card.rates.decode, [m.measured.decode / u for m, u in zip(mine, units, strict=True)]),
        upload=_blend(card.rates.upload, [m.measured.upload for m in mine]),
    )


def _blend(prior: float, measured: list[float]) -> float:
    share = len(measured) / (len(measured) + PRIOR_WEIGHT)
    return (1 - share) * prior + share * median(measured)


@dataclass(frozen=True, slots=True)
class _Learned:
    rates: Rates
    at: float


class Estimator:
    """Rates by model and route, read from the book again every few seconds."""

    def __init__(self, book: JobBook, clock: Callable[[], float] = time.monotonic) -> None:
        self._book = book
        self._clock = clock
        self._learned: dict[tuple[str, Route], _Learned] = {}
        self._lock = threading.Lock()

    def estimate(self, spec: VideoSpec, card: ModelCard, route: Route = Route.GPU) -> StageSeconds:
        """Predicted seconds of this spec."""
        return predict(spec, self._rates(card, route), spec.steps or card.limits.steps.default)

    def _rates(self, card: ModelCard, route: Route) -> Rates:
        key = (card.name, route)
        with self._lock:
            known = self._learned.get(key)
            if known is not None and self._clock() - known.at < REFRESH_SECONDS:
                return known.rates
            rates = learn(card, self._book.measurements(card.name), route)
            self._learned[key] = _Learned(rates, self._clock())
            return rates
