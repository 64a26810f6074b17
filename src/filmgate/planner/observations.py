"""Runs as observations: the same arithmetic that answers a question predicts what somebody measured."""

from collections.abc import Mapping

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.runs import LlmRun, MeasuredRun, VideoRun
from filmgate.planner.calibration import Constants, Observation
from filmgate.planner.llm.memory import cache_capacity
from filmgate.planner.llm.step_time import (
    Serving,
    burst_seconds,
    decode_step,
    first_token_seconds,
    prefill_step,
    steady_token_seconds,
)
from filmgate.planner.priors import ENGINES
from filmgate.planner.roofline import Software, decode_time, forward_time, rates
from filmgate.planner.video.clip_time import clip_time
from filmgate.planner.video.work import clip_for, decode_work, forward_work

LARGEST_BATCH = 2048
LLM_ONLY = ("llm.", *ENGINES)
TO_SECONDS = {"first_token_ms": 1e3, "token_ms": 1e3, "latency_ms": 1e3}


def of_video(run: VideoRun, catalog: Catalog) -> Observation:
    """Seconds of a whole clip."""
    model = catalog.video_model(run.model)
    clip = clip_for(
        model,
        width=run.width,
        height=run.height,
        frames=run.frames,
        steps=run.steps or None,
        forwards_per_step=run.forwards_per_step,
    )
    software = Software(run.kernel, run.mode, run.decode_dtype, run.is_tiled)
    gpu = catalog.gpu(run.gpu)

    def predict(constants: Constants) -> float:
        time = clip_time(model, clip, gpu, run.gpus, software, constants)
        return time.of("decode").seconds if run.kind == "decode" else time.seconds

    return Observation(run.id, run.seconds, predict)


def of_measured(run: MeasuredRun, catalog: Catalog) -> Observation:
    """Seconds of one stage."""
    model = catalog.video_model(run.model)
    clip = clip_for(model, width=run.width, height=run.height, frames=run.frames)
    gpu = catalog.gpu(run.gpu)
    software = Software(mode=run.mode)

    def predict(constants: Constants) -> float:
        rate = rates(gpu, software, constants, model.denoiser.head_dim)
        if run.stage == "forward":
            return forward_time(forward_work(model, clip), rate).seconds
        return decode_time(decode_work(model, clip), rate).seconds

    return Observation(measured_id(run), run.seconds, predict)


def measured_id(run: MeasuredRun) -> str:
    return f"{run.gpu.lower()}-{run.model}-{run.width}x{run.height}x{run.frames}-{run.stage}-{run.mode}"


def of_llm(run: LlmRun, catalog: Catalog) -> Observation:
    """Seconds a token, a request or a first token, whichever the source printed."""
    serving = Serving(
        catalog.llm(run.model), catalog.gpu(run.gpu), run.gpus, run.precision, run.kv_precision, run.engine
    )

    def predict(constants: Constants) -> float:
        return _llm_seconds(run, serving, constants)

    seconds = run.value / TO_SECONDS[run.metric] if run.metric in TO_SECONDS else 1.0 / run.value
    others = tuple(f"{engine}." for engine in ENGINES if engine != run.engine)
    return Observation(run.id, seconds, predict, others)


def _llm_seconds(run: LlmRun, serving: Serving, constants: Mapping[str, float]) -> float:
    prompt, answer = float(run.input_tokens or 0), float(run.output_tokens or 0)
    if run.requests:
        limit = min(run.batch or LARGEST_BATCH, cache_capacity(serving, prompt + answer))
        total = burst_seconds(serving, run.requests, prompt, answer, limit, constants)
        tokens = {"requests_per_second": 1.0, "total_tokens_per_second": prompt + answer}.get(
            run.metric, answer
        )
        return total / (run.requests * tokens)
    batch = run.batch or min(cache_capacity(serving, prompt + answer / 2), LARGEST_BATCH)
    if run.metric == "first_token_ms":
        return first_token_seconds(serving, prompt, constants, batch)
    if run.metric == "latency_ms":
        step = decode_step(serving, batch, prompt + answer / 2, constants).seconds
        return prefill_step(serving, prompt, batch, constants).seconds + answer * step
    if run.note and "after the prompts" in run.note:
        return decode_step(serving, batch, prompt + answer / 2, constants).seconds
    steady = steady_token_seconds(serving, batch, prompt, answer, constants)
    return steady if run.metric == "token_ms" else steady / batch
