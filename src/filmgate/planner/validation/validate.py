"""Validates the planner against catalog runs. Each run is predicted by a calibration that left it out."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import median

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import GIB
from filmgate.catalog.runs import LlmRun, MeasuredRun, MemoryRun, VideoRun
from filmgate.planner.percentiles import percentile
from filmgate.planner.validation.fit import Constants, Observation, Prior, Tangents, fit
from filmgate.planner.validation.observations import clip_of, of_llm, of_measured, of_video
from filmgate.planner.validation.priors import LLM_PRIORS, VIDEO_PRIORS
from filmgate.planner.video.memory import Placement, activation_bytes, budget, decode_bytes

INTERVAL = 0.8


@dataclass(frozen=True, slots=True)
class ValidationRow:
    """A published or measured figure and its prediction.

    `predicted_strict` leaves out all runs of the same model on the same GPU. `note` explains why a row is not
    counted.
    """

    id: str
    group: str
    model: str
    gpu: str
    gpus: int
    published: float
    predicted: float
    is_counted: bool
    source: str
    note: str = ""
    predicted_strict: float | None = None
    generation: str = ""

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1.0

    @property
    def strict_error(self) -> float | None:
        return self.predicted_strict / self.published - 1.0 if self.predicted_strict else None


@dataclass(frozen=True, slots=True)
class Validation:
    """Every row, and the calibration fitted to all runs."""

    rows: tuple[ValidationRow, ...]
    calibration: Calibration

    def counted(self, *groups: str) -> list[ValidationRow]:
        return [row for row in self.rows if row.group in groups and row.is_counted]

    def median_error(self, *groups: str) -> float:
        return median(abs(row.error) for row in self.counted(*groups))

    def coverage(self, *groups: str) -> float:
        """The share of rows that lie within an 80 % interval made without them.

        Both the constants and the width leave out every run of the row's model and GPU.
        """
        rows = [row for row in self.counted(*groups) if row.strict_error is not None]
        inside = 0
        for row in rows:
            others = [o for o in rows if (o.model, o.gpu) != (row.model, row.gpu)]
            inside += _log_error(row) <= percentile([_log_error(o) for o in others], INTERVAL)
        return inside / len(rows)


class HeldOut:
    """A fit to all observations, and fits that leave out some of them. They start from the first one."""

    def __init__(self, observations: Sequence[Observation], priors: dict[str, Prior]) -> None:
        self._observations, self._priors = observations, priors
        self.full = fit(observations, priors)
        self._tangents: Tangents = {}
        self._fits: dict[frozenset[str], Constants] = {}

    def fit_without(self, left_out: Iterable[str]) -> Constants:
        """The fit without the observations of these ids."""
        ids = frozenset(left_out)
        if ids not in self._fits:
            kept = [seen for seen in self._observations if seen.id not in ids]
            self._fits[ids] = fit(kept, self._priors, self.full, self._tangents)
        return self._fits[ids]

    def predict(self, group_by_id: Mapping[str, object]) -> dict[str, float]:
        """Predicted seconds by observation id, from fits that exclude the observation's group."""
        members = defaultdict(list)
        for seen in self._observations:
            members[group_by_id[seen.id]].append(seen.id)
        return {
            seen.id: seen.predict(self.fit_without(members[group_by_id[seen.id]]))
            for seen in self._observations
        }


def validate(catalog: Catalog, as_of: str) -> Validation:
    """Validates every run of the catalog, and calibrates on all of them."""
    video, video_constants = _video_rows(catalog)
    llm, llm_constants = _llm_rows(catalog)
    rows = (*video, *llm, *memory_rows(catalog))
    video_counted = [row for row in video if row.is_counted]
    llm_counted = [row for row in llm if row.is_counted and row.group == "llm"]
    calibration = Calibration(
        constants={name: round(value, 5) for name, value in (video_constants | llm_constants).items()},
        video_spread=_strict_spread(video_counted),
        llm_spread=_strict_spread(llm_counted),
        seen_gpus=tuple(sorted({row.gpu for row in video_counted})),
        source=f"fitted to {len(video_counted)} video and {len(llm_counted)} language-model figures",
        as_of=as_of,
        seen_llm_gpus=tuple(sorted({row.gpu for row in llm_counted})),
    )
    return Validation(rows, calibration)


def _strict_spread(rows: Iterable[ValidationRow]) -> float:
    """The spread of runs whose model and GPU the fit has not seen together: those of a fresh question."""
    errors = [_log_error(row) for row in rows if row.strict_error is not None]
    return round(percentile(errors, INTERVAL), 4)


def _log_error(row: ValidationRow) -> float:
    return abs(log(1 + (row.strict_error or 0.0)))


def _video_rows(catalog: Catalog) -> tuple[list[ValidationRow], dict[str, float]]:
    runs = catalog.runs
    counted = [of_video(run, catalog) for run in runs.video if run.kind != "bound"]
    counted += [of_measured(run, catalog) for run in runs.measured]
    machine = {run.id: (run.model, run.gpu) for run in runs.video}
    machine |= {run.id: (run.model, run.gpu) for run in runs.measured}
    fits = HeldOut(counted, VIDEO_PRIORS)
    held_out, strict = fits.predict({run: run for run in machine}), fits.predict(machine)
    rows = []
    for run in runs.video:
        predicted = held_out.get(run.id) or of_video(run, catalog).predict(fits.full)
        row = _time_row(run, catalog, "video", run.seconds, predicted, strict.get(run.id))
        rows.append(replace(row, is_counted=run.id in held_out))
    rows += [
        _time_row(run, catalog, "measured", run.seconds, held_out[run.id], strict[run.id])
        for run in runs.measured
    ]
    return rows, fits.full


def _time_row(
    run: VideoRun | LlmRun | MeasuredRun,
    catalog: Catalog,
    group: str,
    published: float,
    predicted: float,
    strict: float | None,
) -> ValidationRow:
    """A counted row of published seconds, the prediction, and the strict one."""
    row = _row(run, group, published, predicted)
    return replace(row, predicted_strict=strict, generation=catalog.gpu(run.gpu).generation)


def _row(
    run: VideoRun | LlmRun | MemoryRun | MeasuredRun, group: str, published: float, predicted: float
) -> ValidationRow:
    return ValidationRow(
        id=run.id,
        group=group,
        model=run.model,
        gpu="" if isinstance(run, MemoryRun) else run.gpu,
        gpus=1 if isinstance(run, MeasuredRun) else run.gpus,
        published=published,
        predicted=predicted,
        is_counted=True,
        source=run.source,
        note=run.note or "",
    )


def _llm_rows(catalog: Catalog) -> tuple[list[ValidationRow], dict[str, float]]:
    timed = [run for run in catalog.runs.llm if run.kind == "time"]
    observations = [of_llm(run, catalog) for run in timed]
    machine = {run.id: (run.model, run.gpu) for run in timed}
    fits = HeldOut(observations, LLM_PRIORS)
    held_out, strict = fits.predict({run: run for run in machine}), fits.predict(machine)
    rows = [
        _time_row(run, catalog, "llm", seen.seconds, held_out[run.id], strict[run.id])
        for run, seen in zip(timed, observations, strict=True)
    ]
    rows += _loaded_rows(catalog, fits, machine)
    unknown = [run for run in catalog.runs.llm if run.kind == "unknown"]
    rows += [replace(_time_row(run, catalog, "llm", 1.0, 1.0, None), is_counted=False) for run in unknown]
    return rows, fits.full


def _loaded_rows(
    catalog: Catalog, fits: HeldOut, machine: Mapping[str, tuple[str, str]]
) -> list[ValidationRow]:
    """First tokens under load. No constant is fitted to them; `strict` also leaves out their machine."""
    rows = []
    for run in (run for run in catalog.runs.llm if run.kind == "load"):
        strict = fits.fit_without(name for name, key in machine.items() if key == (run.model, run.gpu))
        seen = of_llm(run, catalog)
        predicted, strictly = seen.predict(fits.full), seen.predict(strict)
        rows.append(_time_row(run, catalog, "llm-load", seen.seconds, predicted, strictly))
    return rows


def memory_rows(catalog: Catalog) -> list[ValidationRow]:
    """Peak memory in GiB of published runs and of measured stages."""
    rows = [_memory_row(run, catalog) for run in catalog.runs.memory]
    return rows + [_measured_memory_row(run, catalog) for run in catalog.runs.measured if run.peak_bytes]


def _memory_row(run: MemoryRun, catalog: Catalog) -> ValidationRow:
    """A code base other than diffusers gets an activation factor from its other runs."""
    factor = 1.0
    if run.activation != "diffusers":
        others = [o for o in catalog.runs.memory if o.activation == run.activation and o.id != run.id]
        factor = median(activation_factor(other, catalog) for other in others)
    row = _row(run, "memory", run.peak_gib, _peak_bytes(run, catalog, factor) / GIB)
    return replace(row, id=f"memory-{run.id}", is_counted=run.kind == "memory")


def _measured_memory_row(run: MeasuredRun, catalog: Catalog) -> ValidationRow:
    """The weights and buffers of one stage; the other components were not on the GPU."""
    model, clip = catalog.video_model(run.model), clip_of(run, catalog)
    if run.stage == "forward":
        one_pass = replace(clip, forwards_per_step=1)
        predicted = 2.0 * model.denoiser.params + activation_bytes(model, one_pass, Placement())
    else:
        predicted = 2.0 * model.vae.params + decode_bytes(model, clip, Placement())
    row = _row(run, "memory", (run.peak_bytes or 0) / GIB, predicted / GIB)
    return replace(row, id=f"memory-{run.id}")


def _placement(run: MemoryRun, factor: float) -> Placement:
    return Placement(
        weights=run.weights,
        decode_dtype=run.decode_dtype,
        offload=run.offload,
        is_tiled=run.is_tiled,
        gpus=run.gpus,
        is_sharded=run.gpus > 1,
        activation_factor=factor,
    )


def _peak_bytes(run: MemoryRun, catalog: Catalog, factor: float) -> float:
    model = catalog.video_model(run.model)
    return budget(model, clip_of(run, catalog), _placement(run, factor), safety_factor=1.0).peak_bytes


def activation_factor(run: MemoryRun, catalog: Catalog) -> float:
    """The activations of a run's code base relative to diffusers, from its published peak."""
    model = catalog.video_model(run.model)
    held = activation_bytes(model, clip_of(run, catalog), _placement(run, 1.0))
    return 1.0 + (run.peak_gib * GIB - _peak_bytes(run, catalog, 1.0)) / held
