"""Memory of a served language model, and the number of sequences that its KV cache can hold."""

from filmgate.planner.llm.step_time import Serving, kv_bytes, weight_bytes
from filmgate.planner.memory import SAFETY_FACTOR, MemoryBudget, MemoryLine

USABLE_SHARE = 0.9  # the share of device memory that engines allocate
ENGINE_BYTES = 1.8e9  # CUDA graphs and workspaces per GPU
STEP_TOKENS = 8192  # the most tokens that an engine processes in one step by default
BYTES_PER_HIDDEN = 32.0  # activations of a token per hidden unit: residual, attention and feed-forward
STAGES = ("decode",)


def llm_budget(serving: Serving, context: float, concurrency: float, safety_factor: float) -> MemoryBudget:
    """The budget of one GPU of the group. Weights and cache are exact, the rest is an estimate."""
    gpus = serving.gpus
    weights = weight_bytes(serving.model, serving.precision) / gpus
    cache = concurrency * kv_bytes(serving.model, context, serving.kv_precision) / gpus
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
    activations = BYTES_PER_HIDDEN * STEP_TOKENS * serving.model.hidden / serving.gpus
    return ENGINE_BYTES + activations


def usable_bytes(serving: Serving) -> float:
    """The memory of one GPU that an engine may allocate."""
    return serving.gpu.memory_bytes * USABLE_SHARE


def cache_capacity(serving: Serving, context: float) -> float:
    """Sequences of `context` tokens that the group can hold at once; at least one."""
    reserve = engine_bytes(serving) * SAFETY_FACTOR
    free = serving.gpus * (usable_bytes(serving) - reserve) - weight_bytes(serving.model, serving.precision)
    return max(1.0, free / kv_bytes(serving.model, context, serving.kv_precision))
