"""Memory of a served language model, and the number of sequences that its KV cache can hold."""

from filmgate.catalog.gpus import GIB
from filmgate.planner.llm.step_time import Serving, kv_bytes, step_tokens, weight_bytes
from filmgate.planner.memory import MemoryBudget, MemoryLine

# Figures from start-up logs and the source of vLLM, none of them a run of the validation:
# 0.12 GiB outside torch (15 GiB of weights on 80 GB) and 0.36 GiB of CUDA graphs (gpustack/runner 251).
ENGINE_BYTES = 0.48 * GIB
# 1.26 GiB of activations for 8192 tokens of Llama 3 8B, on one GPU and on each of two (vllm 10511).
BYTES_PER_HIDDEN = 1.26 * GIB / (8192 * 4096)
STAGES = ("decode",)


def llm_budget(
    serving: Serving, context: float, concurrency: float, safety_factor: float, cached: float = 0.0
) -> MemoryBudget:
    """The budget of one GPU of the group. Weights and cache are exact, the rest is an estimate.

    All sequences share the cache of their first `cached` tokens.
    """
    gpus = serving.gpus
    weights = weight_bytes(serving.model, serving.precision) / gpus
    own = concurrency * kv_bytes(serving.model, context - cached, serving.kv_precision)
    cache = (own + kv_bytes(serving.model, cached, serving.kv_precision)) / gpus
    cache_name = f"KV cache, {concurrency:g} x {context:g} tokens, {serving.kv_precision}"
    return MemoryBudget(
        (
            MemoryLine(f"weights, {serving.precision}", weights, STAGES, False),
            MemoryLine(cache_name, cache, STAGES, False),
            MemoryLine("activations, graphs, workspaces", engine_bytes(serving), STAGES, True),
        ),
        safety_factor,
    )


def engine_bytes(serving: Serving) -> float:
    """Activations of a full step, graphs and workspaces of one GPU. They grow with the model."""
    return ENGINE_BYTES + BYTES_PER_HIDDEN * step_tokens(serving.gpu) * serving.model.hidden


def usable_bytes(serving: Serving) -> float:
    """The memory of one GPU that an engine may allocate."""
    return serving.gpu.memory_bytes * serving.usable_share


def cache_capacity(serving: Serving, context: float, safety_factor: float, cached: float = 0.0) -> float:
    """Sequences of `context` tokens that fit the budget of `llm_budget`; at least one."""
    reserve = engine_bytes(serving) * safety_factor
    free = serving.gpus * (usable_bytes(serving) - reserve) - weight_bytes(serving.model, serving.precision)
    free -= kv_bytes(serving.model, cached, serving.kv_precision)
    return max(1.0, free / kv_bytes(serving.model, context - cached, serving.kv_precision))
