"""A language model on one machine: the question, and the smallest group of GPUs that answers it."""

from dataclasses import dataclass

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.llms import Llm
from filmgate.planner.answer import Rejected
from filmgate.planner.llm_memory import LlmBudget, llm_budget, usable_bytes
from filmgate.planner.llm_time import Serving, first_token_seconds, steady_token_seconds
from filmgate.planner.machines import Machine
from filmgate.planner.memory import GIB, SAFETY_FACTOR

ENGINE = "vllm"
ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class LlmAsk:
    """A serving question; `context` is prompt and answer together, `concurrency` sequences at once."""

    model: Llm
    precision: str = "bf16"
    kv_precision: str = "bf16"
    context: int = 8192
    concurrency: int = 1
    ttft_ms: float | None = None
    tbt_ms: float | None = None
    region: str = "us-east-1"
    gpu: Gpu | None = None
    instances: tuple[str, ...] = ()
    safety_factor: float = SAFETY_FACTOR
    answer_tokens: int = ANSWER_TOKENS
    residency: str | None = None

    @property
    def answer(self) -> int:
        return max(1, min(self.answer_tokens, self.context // 2))

    @property
    def prompt(self) -> int:
        return max(1, self.context - self.answer)


@dataclass(frozen=True, slots=True)
class LlmCandidate:
    """One machine and tensor-parallel group that serves the model."""

    machine: Machine
    serving: Serving
    memory: LlmBudget
    first_token: float
    between_tokens: float
    concurrency: int

    @property
    def tokens_per_second(self) -> float:
        """Of the whole machine: every group of GPUs serves its own sequences."""
        groups = self.machine.gpus // self.serving.gpus
        return groups * self.concurrency / self.between_tokens

    @property
    def usd_per_million(self) -> float | None:
        hourly = self.machine.usd_per_hour
        return hourly / 3600 / self.tokens_per_second * 1e6 if hourly is not None else None


def evaluate_llm(ask: LlmAsk, machine: Machine, calibration: Calibration) -> LlmCandidate | Rejected:
    """The smallest group of GPUs that holds the model and its cache and keeps the latency asked for."""
    refused: Rejected | None = None
    for gpus in (n for n in (1, 2, 4, 8) if n <= machine.gpus):
        serving = Serving(ask.model, machine.gpu, gpus, ask.precision, ask.kv_precision, ENGINE)
        memory = llm_budget(serving, ask.context, ask.concurrency, ask.safety_factor)
        if memory.peak_bytes > usable_bytes(serving):
            reason = (
                f"{memory.peak_bytes / GIB:.1f} GiB a GPU on {gpus} x {machine.gpu.name}, "
                f"{usable_bytes(serving) / GIB:.1f} GiB usable"
            )
            refused = Rejected(
                machine.name, reason, memory.peak_bytes / GIB, usable_bytes(serving) / GIB, "GiB"
            )
            continue
        first = first_token_seconds(serving, ask.prompt, calibration.constants)
        between = steady_token_seconds(
            serving, ask.concurrency, ask.prompt, ask.answer, calibration.constants
        )
        late = _late(ask, machine, gpus, first * 1e3, between * 1e3)
        if late is None:
            return LlmCandidate(machine, serving, memory, first, between, ask.concurrency)
        refused = late
    assert refused is not None, "every machine has at least one GPU"
    return refused


def _late(ask: LlmAsk, machine: Machine, gpus: int, first_ms: float, between_ms: float) -> Rejected | None:
    on = f"on {gpus} x {machine.gpu.name}"
    if ask.ttft_ms is not None and first_ms > ask.ttft_ms:
        reason = f"first token after {first_ms:.0f} ms {on}, {ask.ttft_ms:g} ms allowed"
        return Rejected(machine.name, reason, first_ms, ask.ttft_ms, "ms to first token")
    if ask.tbt_ms is not None and between_ms > ask.tbt_ms:
        reason = f"{between_ms:.0f} ms between tokens {on}, {ask.tbt_ms:g} ms allowed"
        return Rejected(machine.name, reason, between_ms, ask.tbt_ms, "ms between tokens")
    return None
