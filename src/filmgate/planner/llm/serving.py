"""A language model on one machine: the question, and the smallest group of GPUs that answers it."""

from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.llms import Llm
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.money import Bill, bill
from filmgate.planner.fleet.queueing import MOST_SERVERS
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.traffic import Shape, Traffic, traffic_of
from filmgate.planner.llm.arrivals import Limits, pace_of, size_llm_fleet, widest_batch
from filmgate.planner.llm.memory import LlmBudget, llm_budget, usable_bytes
from filmgate.planner.llm.step_time import Serving, first_token_seconds, steady_token_seconds
from filmgate.planner.machines import Machine
from filmgate.planner.video.memory import GIB, SAFETY_FACTOR

ENGINE = "vllm"
ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class LlmAsk:
    """A serving question; `context` is prompt and answer together.

    Without arrivals one replica is asked about, with `concurrency` sequences at once; with them a fleet is,
    and `concurrency` is the most a replica may take.
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
    residency: str | None = None
    requests_per_day: float | None = None
    shape: Shape = Shape.STEADY

    @property
    def traffic(self) -> Traffic | None:
        return traffic_of(self.requests_per_day, self.shape) if self.requests_per_day is not None else None

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
    fleet: Fleet | None = None
    bill: Bill | None = None
    tokens_per_day: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Of the whole machine: every group of GPUs serves its own sequences."""
        groups = self.machine.gpus // self.serving.gpus
        return groups * self.concurrency / self.between_tokens

    @property
    def usd_per_million(self) -> float | None:
        """Of answer tokens: those asked for, or all that a busy machine can make."""
        hourly = self.machine.usd_per_hour
        if self.bill is not None and self.tokens_per_day:
            return self.bill.per(self.tokens_per_day / 1e6)
        return hourly / 3600 / self.tokens_per_second * 1e6 if hourly is not None else None

    @property
    def usd_per_day(self) -> float | None:
        hourly = self.machine.usd_per_hour
        if self.bill is not None:
            return self.bill.usd_per_day
        return hourly * 24 if hourly is not None else None


def evaluate_llm(ask: LlmAsk, machine: Machine, calibration: Calibration) -> LlmCandidate | Rejected:
    """The smallest group of GPUs that holds the model and its cache and keeps the latency asked for."""
    refused: Rejected | None = None
    for gpus in (n for n in (1, 2, 4, 8) if n <= machine.gpus):
        serving = Serving(ask.model, machine.gpu, gpus, ask.precision, ask.kv_precision, ENGINE)
        batch = _batch(ask, serving, calibration)
        memory = llm_budget(serving, ask.context, batch, ask.safety_factor)
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
        between = steady_token_seconds(serving, batch, ask.prompt, ask.answer, calibration.constants)
        late = _late(ask, machine, gpus, first * 1e3, between * 1e3)
        if late is None:
            candidate = LlmCandidate(machine, serving, memory, first, between, batch)
            return candidate if ask.traffic is None else _with_fleet(ask, candidate, calibration)
        refused = late
    assert refused is not None, "every machine has at least one GPU"
    return refused


def _batch(ask: LlmAsk, serving: Serving, calibration: Calibration) -> int:
    """Sequences at once: as asked, or with arrivals as many as latency and memory allow."""
    if ask.traffic is None:
        return ask.concurrency
    limits = Limits(ask.concurrency, ask.tbt_ms / 1e3 if ask.tbt_ms else None, ask.safety_factor)
    return widest_batch(serving, ask.prompt, ask.answer, limits, calibration.constants)


def _with_fleet(ask: LlmAsk, one: LlmCandidate, calibration: Calibration) -> LlmCandidate | Rejected:
    """The candidate with as many replicas as the arrivals need."""
    traffic, hourly = ask.traffic, one.machine.usd_per_hour
    assert traffic is not None, "only a question with arrivals has a fleet"
    pace = pace_of(one.serving, ask.prompt, ask.answer, one.concurrency, calibration.constants)
    ttft = ask.ttft_ms / 1e3 if ask.ttft_ms is not None else None
    fleet = size_llm_fleet(traffic, pace, ttft, one.serving.gpus, one.machine.gpus // one.serving.gpus)
    if fleet is None:
        reason = f"more than {MOST_SERVERS} replicas for {traffic.peak_rate:.3g} requests a second"
        need = traffic.peak_rate * pace.replica_seconds
        return Rejected(one.machine.name, reason, need, MOST_SERVERS, "replicas")
    cost = bill(fleet, traffic, hourly, service=pace.replica_seconds, cold_seconds=None) if hourly else None
    return replace(one, fleet=fleet, bill=cost, tokens_per_day=traffic.per_day * ask.answer)


def _late(ask: LlmAsk, machine: Machine, gpus: int, first_ms: float, between_ms: float) -> Rejected | None:
    on = f"on {gpus} x {machine.gpu.name}"
    if ask.ttft_ms is not None and first_ms > ask.ttft_ms:
        reason = f"first token after {first_ms:.0f} ms {on}, {ask.ttft_ms:g} ms allowed"
        return Rejected(machine.name, reason, first_ms, ask.ttft_ms, "ms to first token")
    if ask.tbt_ms is not None and between_ms > ask.tbt_ms:
        reason = f"{between_ms:.0f} ms between tokens {on}, {ask.tbt_ms:g} ms allowed"
        return Rejected(machine.name, reason, between_ms, ask.tbt_ms, "ms between tokens")
    return None
