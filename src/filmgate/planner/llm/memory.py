"""Memory of a served language model, and the number of sequences that its KV cache can hold."""

from filmgate.planner.llm.step_time import Serving, kv_bytes, weight_bytes
from filmgate.planner.memory import SAFETY_FACTOR, MemoryBudget, MemoryLine

USABLE_SHARE = 0.9  # the share of device memory that engines allocate
ENGINE_BYTES = 4.5e9  # activations, CUDA graphs and workspaces per GPU, with the default safety factor
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
            MemoryLine("activations, graphs, workspaces", ENGINE_BYTES / SAFETY_FACTOR, STAGES, True),
        ),
        safety_factor,
    )


def usable_bytes(serving: Serving) -> float:
    """The memory of one GPU that an engine may allocate."""
    return serving.gpu.memory_bytes * USABLE_SHARE


def cache_capacity(serving: Serving, context: float) -> float:
    """Sequences of `context` tokens that the group can hold at once; at least one."""
    free = serving.gpus * (usable_bytes(serving) - ENGINE_BYTES) - weight_bytes(
        serving.model, serving.precision
    )
    return max(1.0, free / kv_bytes(serving.model, context, serving.kv_precision))
