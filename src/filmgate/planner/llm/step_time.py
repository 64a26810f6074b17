"""Language models on a GPU: time to first token, time between tokens, tokens a second by batch.

A step reads the weights it needs and every sequence's cache, computes one token a sequence and the prompt
tokens that ride along, meets the other GPUs twice a layer, and pays the engine's bookkeeping. Arithmetic
and reads overlap in part: the calibrated `overlap`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.catalog.gpus import Gpu
from filmgate.catalog.llms import Llm
from filmgate.catalog.precisions import bytes_per_value
from filmgate.planner.roofline import REFERENCE_DENSITY, Bound, density

GAMMA = 0.4
UNPACKED = ("fp8", "int8", "int4", "fp4")  # weights a chip without that path unpacks at every step
DRAIN_POINTS = 6
LONGEST_ANSWER = 5.0  # in mean answers: chat data sets are cut at about a thousand tokens


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served: where, how many GPUs, at which precisions, by which engine."""

    model: Llm
    gpu: Gpu
    gpus: int
    precision: str
    kv_precision: str
    engine: str


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step and what fills them; `hidden` is how much of the shorter part the longer covers."""

    compute: float
    weights: float
    cache: float
    interconnect: float
    engine: float
    hidden: float

    @property
    def seconds(self) -> float:
        long, short = sorted((self.compute, self.weights + self.cache), reverse=True)
        return long + (1 - self.hidden) * short + self.interconnect + self.engine

    @property
    def bound(self) -> Bound:
        if self.interconnect > max(self.compute, self.weights + self.cache):
            return Bound.INTERCONNECT
        return Bound.COMPUTE if self.compute > self.weights + self.cache else Bound.MEMORY


def weight_bytes(model: Llm, precision: str) -> float:
    """Bytes of all weights; a checkpoint released in that precision has its exact size."""
    if precision == model.native_precision and model.native_bytes:
        return float(model.native_bytes)
    return model.params * bytes_per_value(precision)


def read_bytes(model: Llm, precision: str, tokens: float) -> float:
    """Weight bytes one step reads: of the experts, only those that any of its tokens is routed to."""
    whole = weight_bytes(model, precision)
    if not model.experts or not model.experts_per_token:
        return whole
    routed = model.experts_per_token / model.experts
    expert_share = (1 - model.active_params / model.params) / (1 - routed)
    touched = 1 - math.pow(1 - routed, max(tokens, 1.0))
    return whole * (1 - expert_share + expert_share * touched)


def kv_bytes(model: Llm, tokens: float, precision: str = "bf16") -> float:
    """Cache of one sequence, exact per architecture: grouped, latent, or half of the layers windowed."""
    width = model.latent_kv or 2 * model.kv_heads * model.head_dim
    seen = min(tokens, float(model.sliding_window)) if model.sliding_window else tokens
    full_layers = model.layers - model.windowed_layers
    return width * bytes_per_value(precision) * (full_layers * tokens + model.windowed_layers * seen)


def decode_step(
    serving: Serving,
    batch: float,
    context: float,
    constants: Mapping[str, float],
    *,
    prompt_tokens: float = 0.0,
) -> StepTime:
    """One token for each of `batch` sequences of `context` tokens, and `prompt_tokens` of new prompts."""
    bandwidth = _bandwidth(serving, constants)
    tokens = batch + prompt_tokens
    share = prompt_tokens / context if context else 0.0
    return StepTime(
        compute=_linear_seconds(serving, tokens, constants)
        + share * _attention_seconds(serving, context, constants),
        weights=read_bytes(serving.model, serving.precision, tokens) / bandwidth,
        cache=batch * kv_bytes(serving.model, context, serving.kv_precision) / bandwidth,
        interconnect=_meeting_seconds(serving, tokens, constants),
        engine=_engine_seconds(serving, batch, constants),
        hidden=1 / (1 + math.exp(-constants["llm.overlap"])),
    )


def prefill_step(serving: Serving, prompt: float, prompts: float, constants: Mapping[str, float]) -> StepTime:
    """Reading `prompts` prompts of `prompt` tokens together."""
    tokens = prompt * prompts
    return StepTime(
        compute=_linear_seconds(serving, tokens, constants)
        + prompts * _attention_seconds(serving, prompt, constants),
        weights=read_bytes(serving.model, serving.precision, tokens) / _bandwidth(serving, constants),
        cache=0.0,
        interconnect=_meeting_seconds(serving, tokens, constants),
        engine=_engine_seconds(serving, prompts, constants),
        hidden=1 / (1 + math.exp(-constants["llm.overlap"])),
    )


def first_token_seconds(
    serving: Serving, prompt: float, constants: Mapping[str, float], prompts: float = 1.0
) -> float:
    return prefill_step(serving, prompt, prompts, constants).seconds


def steady_token_seconds(
    serving: Serving, batch: float, prompt: float, answer: float, constants: Mapping[str, float]
) -> float:
    """Time between tokens with `batch` always busy: each step also carries its share of new prompts."""
    arriving = batch * prompt / max(answer, 1.0)
    return decode_step(serving, batch, prompt + answer / 2, constants, prompt_tokens=arriving).seconds


def burst_seconds(
    serving: Serving,
    requests: float,
    prompt: float,
    answer: float,
    limit: float,
    constants: Mapping[str, float],
) -> float:
    """All requests at once, answers of exponential length: full batches first, then the batch drains."""
    batch = min(requests, limit)
    full = steady_token_seconds(serving, batch, prompt, answer, constants)
    steady = (requests - batch) * answer / batch * full
    prefill = prefill_step(serving, prompt, batch, constants).seconds
    drained = 0.0
    length = min(math.log(max(batch, math.e)), LONGEST_ANSWER)
    for i in range(DRAIN_POINTS):
        left = batch * math.exp(-(i + 0.5) * length / DRAIN_POINTS)
        drained += decode_step(serving, left, prompt + answer, constants).seconds
    return steady + prefill + drained / DRAIN_POINTS * length * answer


def _bandwidth(serving: Serving, constants: Mapping[str, float]) -> float:
    return serving.gpus * (serving.gpu.bandwidth or math.nan) * math.exp(constants["llm.bandwidth"])


def _engine_seconds(serving: Serving, sequences: float, constants: Mapping[str, float]) -> float:
    step, sequence = constants[f"{serving.engine}.step"], constants[f"{serving.engine}.sequence"]
    return math.exp(step) + sequences * _long_layers(serving.model) * math.exp(sequence)


def _long_layers(model: Llm) -> float:
    """Layers by how much of a chat's few hundred tokens they attend over; a window of 128 sees a third."""
    return model.layers - model.windowed_layers * 2 / 3


def _attention_seconds(serving: Serving, prompt: float, constants: Mapping[str, float]) -> float:
    model = serving.model
    flops = 2.0 * model.layers * model.heads * model.head_dim * prompt * prompt
    share = _share(serving.gpu, constants["llm.attention"])
    return flops / (serving.gpus * (serving.gpu.half_flops or math.nan) * share)


def _linear_seconds(serving: Serving, tokens: float, constants: Mapping[str, float]) -> float:
    peak = serving.gpu.flops(serving.precision if serving.precision in ("fp8", "fp4") else "bf16") or math.nan
    log_share = constants["llm.linear"]
    if serving.model.experts:
        log_share += constants["llm.experts"]
    if serving.precision in UNPACKED and peak == serving.gpu.half_flops:
        log_share += constants["llm.dequantise"]
    share = _share(serving.gpu, log_share)
    return 2.0 * serving.model.active_params * tokens / (serving.gpus * peak * share)


def _share(gpu: Gpu, log_share: float) -> float:
    return min(0.95, math.exp(log_share) * math.pow(density(gpu) / REFERENCE_DENSITY, -GAMMA))


def _meeting_seconds(serving: Serving, tokens: float, constants: Mapping[str, float]) -> float:
    """Two all-reduces a layer: a latency each, and twice the hidden state over the link."""
    if serving.gpus == 1:
        return 0.0
    meetings = 2 * serving.model.layers
    gpu = serving.gpu
    link = (
        (gpu.nvlink_gb_s / 2 if gpu.nvlink_gb_s else (gpu.pcie_gb_s or 16.0) / 2)
        * 1e9
        * math.exp(constants["llm.link"])
    )
    latency = math.exp(constants["llm.meeting" if gpu.has_nvlink else "llm.meeting_pcie"])
    return meetings * (latency + 2 * tokens * serving.model.hidden * 2 / link)
