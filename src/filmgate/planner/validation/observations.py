"""Catalog runs as observations: the formulas that answer questions also predict published runs."""

from collections.abc import Mapping
from dataclasses import replace

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.runs import LlmRun, MeasuredRun, MemoryRun, VideoRun
from filmgate.jobs import Size
from filmgate.planner.llm.loaded import Load, loaded_first_token
from filmgate.planner.llm.memory import cache_capacity
from filmgate.planner.llm.step_time import (
    Serving,
    between_tokens_seconds,
    burst_seconds,
    decode_step,
    prefill_step,
    steady_token_seconds,
)
from filmgate.planner.validation.fit import Constants, Observation
from filmgate.planner.video.clip import ClipShape, clip_for
from filmgate.planner.video.clip_time import clip_time
from filmgate.planner.video.rates import Software, decode_time, forward_time, rates
from filmgate.planner.video.work import decode_work, forward_work

MAX_BATCH = 2048
NO_SAFETY = 1.0  # a published run used the memory that it had


def clip_of(run: VideoRun | MemoryRun | MeasuredRun, catalog: Catalog) -> ClipShape:
    """The clip that a run rendered."""
    clip = clip_for(catalog.video_model(run.model), size=Size(run.width, run.height), frames=run.frames)
    if not isinstance(run, VideoRun):
        return clip
    return replace(
        clip,
        steps=run.steps or clip.steps,
        forwards_per_step=run.forwards_per_step or clip.forwards_per_step,
    )


def of_video(run: VideoRun, catalog: Catalog) -> Observation:
    """Seconds of a whole clip, or of its decode."""
    model, gpu, clip = catalog.video_model(run.model), catalog.gpu(run.gpu), clip_of(run, catalog)
    software = Software(run.kernel, run.mode, run.decode_dtype, run.is_tiled)

    def predict(constants: Constants) -> float:
        time = clip_time(model, clip, gpu, run.gpus, software, constants)
        return time.of("decode").seconds if run.kind == "decode" else time.seconds

    return Observation(run.id, run.seconds, predict)


def of_measured(run: MeasuredRun, catalog: Catalog) -> Observation:
    """Seconds of one stage."""
    model, gpu, clip = catalog.video_model(run.model), catalog.gpu(run.gpu), clip_of(run, catalog)
    software = Software(mode=run.mode)

    def predict(constants: Constants) -> float:
        rate = rates(gpu, software, constants, model.denoiser.head_dim)
        if run.stage == "forward":
            return forward_time(forward_work(model, clip), rate).seconds
        return decode_time(decode_work(model, clip), rate).seconds

    return Observation(run.id, run.seconds, predict)


def of_llm(run: LlmRun, catalog: Catalog) -> Observation:
    """Seconds per token, per request or to the first token, depending on the published figure."""
    serving = Serving(
        catalog.llm(run.model), catalog.gpu(run.gpu), run.gpus, run.precision, run.kv_precision, run.engine
    )

    def predict(constants: Constants) -> float:
        return _llm_seconds(run, serving, constants)

    seconds = run.value / 1e3 if run.metric.endswith("_ms") else 1.0 / run.value
    return Observation(run.id, seconds, predict)


def _llm_seconds(run: LlmRun, serving: Serving, constants: Mapping[str, float]) -> float:
    prompt, answer = float(run.input_tokens or 0), float(run.output_tokens or 0)
    if run.requests:
        limit = min(run.batch or MAX_BATCH, cache_capacity(serving, prompt + answer, NO_SAFETY))
        total = burst_seconds(serving, run.requests, prompt, answer, limit, constants)
        per_request = {"requests_per_second": 1.0, "total_tokens_per_second": prompt + answer}
        return total / (run.requests * per_request.get(run.metric, answer))
    batch = run.batch or min(cache_capacity(serving, prompt + answer / 2, NO_SAFETY), MAX_BATCH)
    if run.metric == "loaded_first_token_ms":
        load = Load(int(prompt), int(answer), int(batch))
        return loaded_first_token(serving, load, constants).mean
    if run.metric == "first_token_ms":
        return prefill_step(serving, prompt, batch, constants).seconds
    if run.metric in ("latency_ms", "decode_token_ms"):
        step = decode_step(serving, batch, prompt + answer / 2, constants).seconds
        is_token = run.metric == "decode_token_ms"
        return step if is_token else prefill_step(serving, prompt, batch, constants).seconds + answer * step
    if run.metric == "token_ms":
        return between_tokens_seconds(serving, batch, prompt, answer, constants)
    return steady_token_seconds(serving, batch, prompt, answer, constants) / batch
