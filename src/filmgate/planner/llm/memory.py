"""Memory of a served language model: weights, cache, activations; and how many sequences the rest holds."""

from dataclasses import dataclass

from filmgate.planner.llm.step_time import Serving, kv_bytes, weight_bytes

GIB = 1 << 30
USABLE_SHARE = 0.9  # engines claim this much of the device
ENGINE_BYTES = 4.5e9  # activations, CUDA graphs and workspaces inside that share, a GPU


@dataclass(frozen=True, slots=True)
class LlmMemoryLine:
    """One line of a GPU's budget."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class LlmBudget:
    """What one GPU of the group holds."""

    lines: tuple[LlmMemoryLine, ...]

    @property
    def peak_bytes(self) -> float:
        return sum(line.bytes for line in self.lines)


def llm_budget(serving: Serving, context: float, concurrency: float, safety_factor: float) -> LlmBudget:
    """Weights are exact and the cache is exact; only activations are an estimate and carry the factor."""
    gpus = serving.gpus
    sequence = kv_bytes(serving.model, context, serving.kv_precision)
    return LlmBudget(
        (
            LlmMemoryLine(
                f"weights, {serving.precision}", weight_bytes(serving.model, serving.precision) / gpus
            ),
            LlmMemoryLine(
                f"KV cache, {concurrency:g} x {context:g} tokens, {serving.kv_precision}",
                concurrency * sequence / gpus,
            ),
            LlmMemoryLine("activations, graphs, workspaces", ENGINE_BYTES / 1.2 * safety_factor),
        )
    )


def usable_bytes(serving: Serving) -> float:
    """What an engine may claim of one GPU."""
    return serving.gpu.memory_bytes * USABLE_SHARE


def cache_capacity(serving: Serving, context: float) -> float:
    """Sequences of `context` tokens the group can hold at once; at least one."""
    free = serving.gpus * (usable_bytes(serving) - ENGINE_BYTES) - weight_bytes(
        serving.model, serving.precision
    )
    return max(1.0, free / kv_bytes(serving.model, context, serving.kv_precision))
