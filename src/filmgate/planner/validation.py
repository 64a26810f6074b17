"""The planner against runs it has not seen: each row is predicted from a calibration that left it out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from typing import Literal

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.catalog.runs import MeasuredRun, MemoryRun
from filmgate.planner.calibration import Constants, Observation, Prior, fit
from filmgate.planner.observations import measured_id, of_llm, of_measured, of_video
from filmgate.planner.priors import LLM_PRIORS, VIDEO_PRIORS
from filmgate.planner.video.memory import GIB, Placement, activation_bytes, budget, decode_bytes
from filmgate.planner.video.work import clip_for

INTERVAL = 0.8
PROMISED = (
    ("wan2.1-t2v-1.3b", 832, 480, 81),
    ("wan2.1-t2v-1.3b", 1280, 720, 81),
    ("ltx-video-2b-0.9.0", 768, 512, 121),
    ("cogvideox-2b", 720, 480, 49),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """One published or measured figure beside its prediction; `note` says why a row is not counted."""

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
    harder: float | None = None

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1.0


@dataclass(frozen=True, slots=True)
class Pending:
    """A run that was promised and is not measured yet, with what the planner expects of it."""

    model: str
    shape: str
    stage: str
    predicted: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Every row, the constants that the whole set gives, and the runs still to be made."""

    rows: tuple[Judged, ...]
    calibration: Calibration
    pending: tuple[Pending, ...]

    def counted(self, *groups: str) -> list[Judged]:
        return [row for row in self.rows if row.group in groups and row.is_counted]

    def median_error(self, *groups: str) -> float:
        return median(abs(row.error) for row in self.counted(*groups))

    def worst_single(self, *groups: str) -> Judged:
        return max((row for row in self.counted(*groups) if row.gpus == 1), key=lambda row: abs(row.error))


Group = Callable[[Observation], object]


def held_out(
    observations: Sequence[Observation],
    priors: dict[str, Prior],
    full: Constants,
    group_of: Group,
) -> list[float]:
    """Predicted seconds of every observation by a fit that saw no observation of its group."""
    fits: dict[object, Constants] = {}
    predicted = []
    for seen in observations:
        key = group_of(seen)
        if key not in fits:
            fits[key] = fit([o for o in observations if group_of(o) != key], priors, full)
        predicted.append(seen.predict(fits[key]))
    return predicted


def validate(catalog: Catalog, as_of: str) -> Validation:
    """Judge every run of the catalog and calibrate on all of them."""
    video, video_fit = _judge_video(catalog)
    llm, llm_fit = _judge_llm(catalog)
    rows = (*video, *llm, *judge_memory(catalog))
    timed = [row for row in rows if row.group in ("video", "measured") and row.is_counted]
    calibration = Calibration(
        constants={name: round(value, 5) for name, value in (video_fit | llm_fit).items()},
        video_spread=round(_quantile([abs(log(1 + row.error)) for row in timed], INTERVAL), 4),
        llm_spread=round(_quantile([abs(log(1 + row.error)) for row in llm if row.is_counted], INTERVAL), 4),
        seen_gpus=tuple(sorted({row.gpu for row in timed})),
        source=f"fitted to {len(timed)} video and {len(llm_rows(rows))} language-model figures",
        as_of=as_of,
    )
    return Validation(rows, calibration, tuple(_pending(catalog, video_fit)))


def _pending(catalog: Catalog, constants: Constants) -> list[Pending]:
    """Runs of benchmarks/gpu_planner_measurements.py that no report holds."""
    done = {measured_id(run) for run in catalog.runs.measured}
    found = []
    stages: tuple[Literal["forward", "decode"], ...] = ("forward", "decode")
    for model, width, height, frames in PROMISED:
        for stage in stages:
            run = MeasuredRun(model, "H200", stage, width, height, frames, "eager", 1.0, "", "")
            if measured_id(run) not in done:
                seconds = of_measured(run, catalog).predict(constants)
                found.append(Pending(model, f"{width}x{height}x{frames}", stage, seconds))
    return found


def llm_rows(rows: Sequence[Judged]) -> list[Judged]:
    return [row for row in rows if row.group == "llm" and row.is_counted]


def _judge_video(catalog: Catalog) -> tuple[list[Judged], dict[str, float]]:
    runs = catalog.runs
    counted = [of_video(run, catalog) for run in runs.video if run.kind != "bound"]
    counted += [of_measured(run, catalog) for run in runs.measured]
    machine = {run.id: (run.model, run.gpu) for run in runs.video}
    machine |= {measured_id(run): (run.model, run.gpu) for run in runs.measured}
    full = fit(counted, VIDEO_PRIORS)
    by_row = dict(
        zip([o.id for o in counted], held_out(counted, VIDEO_PRIORS, full, lambda o: o.id), strict=True)
    )
    harder = dict(
        zip(
            [o.id for o in counted],
            held_out(counted, VIDEO_PRIORS, full, lambda o: machine[o.id]),
            strict=True,
        )
    )
    rows = []
    for run in runs.video:
        predicted = by_row.get(run.id) or of_video(run, catalog).predict(full)
        rows.append(
            Judged(
                run.id,
                "video",
                run.model,
                run.gpu,
                run.gpus,
                run.seconds,
                predicted,
                run.id in by_row,
                run.source,
                run.note or "",
                harder.get(run.id),
            )
        )
    for measured in runs.measured:
        key = measured_id(measured)
        rows.append(
            Judged(
                key,
                "measured",
                measured.model,
                measured.gpu,
                1,
                measured.seconds,
                by_row[key],
                True,
                measured.source,
                measured.note or "",
                harder[key],
            )
        )
    return rows, full


def _judge_llm(catalog: Catalog) -> tuple[list[Judged], dict[str, float]]:
    runs = [run for run in catalog.runs.llm if run.kind == "time"]
    observations = [of_llm(run, catalog) for run in runs]
    full = fit(observations, LLM_PRIORS)
    predictions = held_out(observations, LLM_PRIORS, full, lambda o: o.id)
    rows = [
        Judged(
            run.id,
            "llm",
            run.model,
            run.gpu,
            run.gpus,
            seen.seconds,
            predicted,
            True,
            run.source,
            run.note or "",
        )
        for run, seen, predicted in zip(runs, observations, predictions, strict=True)
    ]
    rows += [
        Judged(run.id, "llm", run.model, run.gpu, run.gpus, 1.0, 1.0, False, run.source, run.note or "")
        for run in catalog.runs.llm
        if run.kind != "time"
    ]
    return rows, full


def judge_memory(catalog: Catalog) -> list[Judged]:
    """Peak memory; a code base that holds more than diffusers has its factor taken from its other rows."""
    rows = []
    for run in catalog.runs.memory:
        others = [o for o in catalog.runs.memory if o.activation == run.activation and o.id != run.id]
        factor = 1.0
        if run.activation != "diffusers":
            factor = median(activation_factor(other, catalog) for other in others)
        predicted = _memory(run, catalog, factor) / GIB
        note = run.note or ""
        rows.append(
            Judged(
                f"memory-{run.id}",
                "memory",
                run.model,
                "",
                run.gpus,
                run.peak_gib,
                predicted,
                run.kind == "memory",
                run.source,
                note,
            )
        )
    return rows + [_measured_memory(catalog, run) for run in catalog.runs.measured if run.peak_bytes]


def _measured_memory(catalog: Catalog, run: MeasuredRun) -> Judged:
    """One stage's weights and what it holds; the other parts were not on the GPU."""
    model = catalog.video_model(run.model)
    clip = clip_for(model, width=run.width, height=run.height, frames=run.frames, forwards_per_step=1)
    if run.stage == "forward":
        predicted = _stage_bytes(model.denoiser.params, activation_bytes(model, clip, Placement()))
    else:
        predicted = _stage_bytes(model.vae.params, decode_bytes(model, clip, Placement()))
    peak = (run.peak_bytes or 0) / GIB
    return Judged(
        f"memory-{measured_id(run)}",
        "memory",
        run.model,
        run.gpu,
        1,
        peak,
        predicted / GIB,
        True,
        run.source,
        run.note or "",
    )


def _stage_bytes(params: int, held: float) -> float:
    return 2.0 * params + held


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


def _memory(run: MemoryRun, catalog: Catalog, factor: float) -> float:
    model = catalog.video_model(run.model)
    clip = clip_for(model, width=run.width, height=run.height, frames=run.frames)
    return budget(model, clip, _placement(run, factor), safety_factor=1.0).peak_bytes


def activation_factor(run: MemoryRun, catalog: Catalog) -> float:
    """How much more than diffusers a run's code base holds, from its printed peak."""
    model = catalog.video_model(run.model)
    clip = clip_for(model, width=run.width, height=run.height, frames=run.frames)
    held = activation_bytes(model, clip, _placement(run, 1.0))
    return 1.0 + (run.peak_gib * GIB - _memory(run, catalog, 1.0)) / held


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
