"""A question about a served language model."""

from dataclasses import dataclass

from filmgate.catalog.gpus import Gpu
from filmgate.catalog.llms import Llm
from filmgate.planner.fleet.money import DEFAULT_TERMS, Terms
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.llm.loaded import Load
from filmgate.planner.memory import SAFETY_FACTOR

ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class LlmQuestion:
    """What to plan for. `context` is the prompt and the answer together.

    Without `traffic` the question is about one replica with `concurrency` sequences at once. With `traffic`,
    which counts requests, a fleet is sized, and `concurrency` is the maximum per replica. `cached_tokens` of
    each prompt are in the prefix cache. The whole memory budget times `budget_margin` must fit. A fleet with
    a latency target still meets it when `spare_machines` are lost.
    """

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
    cached_tokens: int = 0
    budget_margin: float = 1.0
    terms: Terms = DEFAULT_TERMS
    residency: str | None = None
    traffic: Traffic | None = None
    spare_machines: int = 1

    @property
    def ttft_seconds(self) -> float | None:
        return self.ttft_ms / 1e3 if self.ttft_ms is not None else None

    @property
    def tbt_seconds(self) -> float | None:
        return self.tbt_ms / 1e3 if self.tbt_ms is not None else None

    @property
    def has_target(self) -> bool:
        return self.ttft_ms is not None or self.tbt_ms is not None

    def load(self, sequences: int) -> Load:
        return Load(self.prompt, self.answer_tokens, sequences, min(self.cached_tokens, self.prompt - 1))

    @property
    def prompt(self) -> int:
        return max(1, self.context - self.answer_tokens)
