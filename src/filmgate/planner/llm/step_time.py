"""The time of one step of a language model, and the latencies that follow from it.

A step reads the weights it needs and the cache of every sequence, computes one token per sequence and some
prompt tokens, synchronises with the other GPUs twice per layer, and has the overhead of the engine.
Arithmetic and reads overlap in part: the calibrated `overlap`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from filmgate.catalog.gpus import GIB, Gpu
from filmgate.catalog.llms import Llm
from filmgate.catalog.precisions import bytes_per_value
from filmgate.planner.roofline import MAX_SHARE_OF_PEAK, REFERENCE_DENSITY, Bound, density

GAMMA = 0.4
UNPACKED = ("fp8", "int8", "int4", "fp4")  # unpacked in every step by a GPU without that path
# BLOCK_SIZE_M of vllm/model_executor/layers/fused_moe/fused_moe.py, get_default_config; the small one where
# a step has no more tokens than the model has experts.
TILE_ROWS, SMALL_TILE_ROWS = 64, 16
# The most tokens in one step: vllm/engine/arg_utils.py, get_batch_defaults, of an API server.
STEP_TOKENS, SMALL_GPU_STEP_TOKENS = 8192, 2048
LARGE_GPU_BYTES = 70 * GIB
DRAIN_POINTS = 6
MAX_ANSWER = 5.0  # in mean answers: chat data sets are truncated at about a thousand tokens


@dataclass(frozen=True, slots=True)
class Serving:
    """A model on a tensor-parallel group of GPUs, at some precisions, in some engine."""

    model: Llm
    gpu: Gpu
    gpus: int
    precision: str
    kv_precision: str
    engine: str
    usable_share: float = 0.9  # of the device memory, that the engine allocates by default


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by resource. `hidden` is the share of the shorter part that overlaps the longer."""

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
    """Bytes of all weights; the exact size of the checkpoint in the precision it was released in."""
    if precision == model.native_precision and model.native_bytes:
        return float(model.native_bytes)
    return model.params * bytes_per_value(precision)


def fp8_changes(serving: Serving) -> list[tuple[str, Serving]]:
    """What is stored in more than eight bits, each with the group that stores it in fp8."""
    changes = (
        ("weights", serving.precision, replace(serving, precision="fp8")),
        ("KV cache", serving.kv_precision, replace(serving, kv_precision="fp8")),
    )
    return [(name, changed) for name, precision, changed in changes if bytes_per_value(precision) > 1]


def expert_share(model: Llm) -> float:
    """The share of all parameters that belongs to experts; 0 without experts."""
    if not model.experts or not model.experts_per_token:
        return 0.0
    return (1 - model.active_params / model.params) / (1 - model.experts_per_token / model.experts)


def padded_products(model: Llm, tokens: float) -> float:
    """Arithmetic of a step relative to the active parameters, with the padding of the experts' products.

    The tokens of each expert are padded to whole tiles of rows, half a tile on average. Many experts with few
    tokens each therefore compute more than few experts with many.
    """
    if not model.experts or not model.experts_per_token:
        return 1.0
    routed = model.experts_per_token / model.experts
    tile = TILE_ROWS if tokens > model.experts else SMALL_TILE_ROWS
    rows = max(1.0, tokens * routed / _touched(routed, tokens))  # of each expert that has a token
    of_experts = expert_share(model) * model.params * routed / model.active_params
    return 1 + of_experts * (max(tile, rows + tile / 2) / rows - 1)


def _touched(routed: float, tokens: float) -> float:
    """The share of the experts that some token is routed to."""
    return 1 - math.pow(1 - routed, max(tokens, 1.0))


def read_bytes(model: Llm, precision: str, tokens: float) -> float:
    """Weight bytes that one step reads. Only experts that some token is routed to are read."""
    whole = weight_bytes(model, precision)
    if not model.experts or not model.experts_per_token:
        return whole
    share, touched = expert_share(model), _touched(model.experts_per_token / model.experts, tokens)
    return whole * (1 - share + share * touched)


def kv_bytes(model: Llm, tokens: float, precision: str = "bf16") -> float:
    """The KV cache of one sequence, exact for grouped, latent and windowed attention."""
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
    """One token for each of `batch` sequences of `context` tokens, plus `prompt_tokens` of new prompts."""
    bandwidth = serving.gpus * (serving.gpu.bandwidth or math.nan) * math.exp(constants["llm.bandwidth"])
    tokens = batch + prompt_tokens
    share = prompt_tokens / context if context else 0.0
    return StepTime(
        compute=_linear_seconds(serving, tokens, constants)
        + share * _attention_seconds(serving, context, constants),
        weights=read_bytes(serving.model, serving.precision, tokens) / bandwidth,
        cache=batch * kv_bytes(serving.model, context, serving.kv_precision) / bandwidth,
        interconnect=_sync_seconds(serving, tokens, constants),
        engine=_engine_seconds(serving, batch, constants),
        hidden=1 / (1 + math.exp(-constants["llm.overlap"])),
    )


def prefill_step(serving: Serving, prompt: float, prompts: float, constants: Mapping[str, float]) -> StepTime:
    """Prefill of `prompts` prompts of `prompt` tokens in one step, which decodes no other sequence."""
    step = decode_step(serving, 0.0, prompt, constants, prompt_tokens=prompt * prompts)
    return replace(step, engine=_engine_seconds(serving, prompts, constants))


def step_tokens(gpu: Gpu) -> int:
    """The most tokens that an engine processes in one step; longer prompts are split into chunks."""
    is_large = gpu.memory_bytes >= LARGE_GPU_BYTES and not gpu.name.startswith("A100")
    return STEP_TOKENS if is_large else SMALL_GPU_STEP_TOKENS


def between_tokens_seconds(
    serving: Serving,
    batch: float,
    prompt: float,
    answer: float,
    constants: Mapping[str, float],
    *,
    cached: float = 0.0,
) -> float:
    """Time between two tokens of one of `batch` sequences. Each step prefills a share of the others' prompts.

    `cached` tokens of each prompt are in the prefix cache.
    """
    others = (batch - 1.0) * max(prompt - cached, 1.0) / max(answer, 1.0)
    room = max(0.0, min(others, step_tokens(serving.gpu) - batch))
    return decode_step(serving, batch, prompt + answer / 2, constants, prompt_tokens=room).seconds


def steady_token_seconds(
    serving: Serving, batch: float, prompt: float, answer: float, constants: Mapping[str, float]
) -> float:
    """Time of a step of a full batch, in which each sequence gains a token, with a share of all prompts."""
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
    """Seconds for requests sent all at once, with exponential answer lengths: full batches, then draining."""
    batch = min(requests, limit)
    full = steady_token_seconds(serving, batch, prompt, answer, constants)
    steady = (requests - batch) * answer / batch * full
    prefill = prefill_step(serving, prompt, batch, constants).seconds
    drained = 0.0
    length = min(math.log(max(batch, math.e)), MAX_ANSWER)
    for i in range(DRAIN_POINTS):
        left = batch * math.exp(-(i + 0.5) * length / DRAIN_POINTS)
        drained += decode_step(serving, left, prompt + answer, constants).seconds
    return steady + prefill + drained / DRAIN_POINTS * length * answer


def _engine_seconds(serving: Serving, sequences: float, constants: Mapping[str, float]) -> float:
    step, sequence = constants[f"{serving.engine}.step"], constants[f"{serving.engine}.sequence"]
    # Weighted by the share of a few hundred tokens that a layer attends over: a third with a window.
    layers = serving.model.layers - serving.model.windowed_layers * 2 / 3
    return math.exp(step) + sequences * layers * math.exp(sequence)


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
    products = serving.model.active_params * tokens * padded_products(serving.model, tokens)
    return 2.0 * products / (serving.gpus * peak * share)


def _share(gpu: Gpu, log_share: float) -> float:
    return min(MAX_SHARE_OF_PEAK, math.exp(log_share) * math.pow(density(gpu) / REFERENCE_DENSITY, -GAMMA))


def _sync_seconds(serving: Serving, tokens: float, constants: Mapping[str, float]) -> float:
    """Two all-reduces per layer, each with a latency and twice the hidden state over the link."""
    if serving.gpus == 1:
        return 0.0
    syncs = 2 * serving.model.layers
    gpu = serving.gpu
    link = (gpu.nvlink_gb_s or gpu.pcie_gb_s or 16.0) / 2 * 1e9 * math.exp(constants["llm.link"])
    latency = math.exp(constants["llm.sync" if gpu.has_nvlink else "llm.sync_pcie"])
    return syncs * (latency + 2 * tokens * serving.model.hidden * 2 / link)
