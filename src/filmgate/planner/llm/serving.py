"""Language-model questions, and the smallest group of GPUs of a machine that meets the requirements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import GIB, Gpu
from filmgate.catalog.llms import Llm
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.money import Bill, Terms, bill
from filmgate.planner.fleet.queueing import MAX_SERVERS
from filmgate.planner.fleet.sizing import CONFIRMING_SEEDS, Fleet
from filmgate.planner.fleet.traffic import Traffic, TrafficShape, traffic_of
from filmgate.planner.llm.arrivals import (
    BatchLimits,
    batches_to_try,
    busiest_sequences,
    fewest_possible,
    first_token_percentile,
    fleet_of,
    largest_batch,
    pace_of,
    size_llm_fleet,
)
from filmgate.planner.llm.loaded import FirstToken, Load, loaded_first_token, prefill_seconds
from filmgate.planner.llm.memory import llm_budget, usable_bytes
from filmgate.planner.llm.simulation import fewest_simulated, first_tokens, late_runs
from filmgate.planner.llm.step_time import Serving, steady_token_seconds
from filmgate.planner.machines import Machine
from filmgate.planner.memory import SAFETY_FACTOR, MemoryBudget

ENGINE = "vllm"
USABLE_SHARE = 0.9
ANSWER_TOKENS = 256


@dataclass(frozen=True, slots=True)
class LlmQuestion:
    """What to plan for. `context` is the prompt and the answer together.

    Without `requests_per_day` the question is about one replica with `concurrency` sequences at once. With
    `requests_per_day` a fleet is sized, and `concurrency` is the maximum per replica. `cached_tokens` of each
    prompt are in the prefix cache. The whole memory budget times `budget_margin` must fit.
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
    commit_discount: float | None = None
    commit_years: int = 1
    residency: str | None = None
    requests_per_day: float | None = None
    shape: TrafficShape = TrafficShape.STEADY

    @property
    def traffic(self) -> Traffic | None:
        return traffic_of(self.requests_per_day, self.shape) if self.requests_per_day is not None else None

    @property
    def terms(self) -> Terms:
        return Terms(self.commit_discount, commit_years=self.commit_years)

    def load(self, sequences: int) -> Load:
        return Load(self.prompt, self.answer, sequences, min(self.cached_tokens, self.prompt - 1))

    @property
    def answer(self) -> int:
        return max(1, min(self.answer_tokens, self.context // 2))

    @property
    def prompt(self) -> int:
        return max(1, self.context - self.answer)


@dataclass(frozen=True, slots=True)
class LlmCandidate:
    """A machine and a tensor-parallel group that meet the requirements."""

    machine: Machine
    serving: Serving
    memory: MemoryBudget
    first: FirstToken
    between_tokens: float
    concurrency: int
    fleet: Fleet | None = None
    bill: Bill | None = None
    tokens_per_day: float | None = None
    reached: int | None = None

    @property
    def sequences(self) -> int:
        """Sequences of a replica in the busiest hour: those that arrivals reach, or all of them."""
        return self.reached or self.concurrency

    @property
    def first_token(self) -> float:
        """Seconds to the first token at p95."""
        return self.first.p95

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens of the whole machine; each group of GPUs serves separate sequences."""
        groups = self.machine.gpus // self.serving.gpus
        return groups * self.sequences / self.between_tokens

    @property
    def usd_per_million(self) -> float | None:
        """USD per million answer tokens: those of the requests, or those of a machine that is always busy."""
        hourly = self.machine.usd_per_hour
        if self.bill is not None and self.tokens_per_day:
            return self.bill.usd_per_unit(self.tokens_per_day / 1e6)
        return hourly / 3600 / self.tokens_per_second * 1e6 if hourly is not None else None

    @property
    def usd_per_day(self) -> float | None:
        hourly = self.machine.usd_per_hour
        if self.bill is not None:
            return self.bill.usd_per_day
        return hourly * 24 if hourly is not None else None


def evaluate_llm(
    question: LlmQuestion, machine: Machine, calibration: Calibration
) -> LlmCandidate | Rejected:
    """The cheapest group of GPUs that fits the model and its cache and meets the latency targets."""
    groups = [n for n in (1, 2, 4, 8) if n <= machine.gpus]
    outcomes = [_evaluate_group(question, machine, gpus, calibration) for gpus in groups]
    found = [o for o in outcomes if isinstance(o, LlmCandidate)]
    if not found:
        return next(o for o in reversed(outcomes) if isinstance(o, Rejected))
    return min(found, key=_cost)


def _evaluate_group(
    question: LlmQuestion, machine: Machine, gpus: int, calibration: Calibration
) -> LlmCandidate | Rejected:
    serving = Serving(
        question.model,
        machine.gpu,
        gpus,
        question.precision,
        question.kv_precision,
        ENGINE,
        USABLE_SHARE / question.budget_margin,
    )
    if question.traffic is None:
        return _evaluate_batch(question, machine, serving, question.concurrency, calibration)
    best: LlmCandidate | Rejected | None = None
    for batch in _batches(question, serving, calibration):
        if isinstance(best, LlmCandidate) and not _may_be_smaller(question, best, batch, calibration):
            continue
        found = _evaluate_batch(question, machine, serving, batch, calibration)
        if not isinstance(best, LlmCandidate) or (
            isinstance(found, LlmCandidate) and _cost(found) < _cost(best)
        ):
            best = found
    assert best is not None, "a batch of one is always tried"
    return best


def _cost(candidate: LlmCandidate) -> tuple[float, float, int]:
    return candidate.usd_per_day or 0.0, candidate.usd_per_million or 0.0, candidate.serving.gpus


def _may_be_smaller(question: LlmQuestion, best: LlmCandidate, batch: int, calibration: Calibration) -> bool:
    """Whether a fleet with this limit on sequences could need fewer machines."""
    traffic, fleet = question.traffic, best.fleet
    assert traffic is not None, "only a question with arrivals has a fleet"
    assert fleet is not None, "only a question with arrivals has a fleet"
    least = fewest_possible(traffic, pace_of(best.serving, question.load(batch), calibration.constants))
    return math.ceil(least * best.serving.gpus / best.machine.gpus) < fleet.instances


def _evaluate_batch(
    question: LlmQuestion, machine: Machine, serving: Serving, batch: int, calibration: Calibration
) -> LlmCandidate | Rejected:
    constants, load, gpus = calibration.constants, question.load(batch), serving.gpus
    memory = llm_budget(serving, question.context, batch, question.safety_factor, load.cached)
    need, have = memory.peak_bytes / GIB, usable_bytes(serving) / GIB
    if memory.peak_bytes > usable_bytes(serving):
        reason = f"{need:.1f} GiB per GPU on {gpus} x {machine.gpu.name}, {have:.1f} GiB usable"
        return Rejected(machine.name, reason, need, have, "GiB")
    between = steady_token_seconds(serving, batch, load.prompt, load.answer, constants, cached=load.cached)
    idle = prefill_seconds(serving, question.load(1), constants)
    first = FirstToken(idle, idle, idle, idle)
    if question.traffic is None:  # with arrivals, the fleet's queue is the load
        first = loaded_first_token(serving, load, constants)
    late = _late(question, machine, gpus, first.p95 * 1e3, between * 1e3)
    if late is not None:
        return late
    candidate = LlmCandidate(machine, serving, memory, first, between, batch)
    return candidate if question.traffic is None else _with_fleet(question, candidate, calibration)


def _batches(question: LlmQuestion, serving: Serving, calibration: Calibration) -> list[int]:
    """Limits on sequences that memory and the time between tokens allow, largest first."""
    tbt_seconds = question.tbt_ms / 1e3 if question.tbt_ms else None
    limits = BatchLimits(question.concurrency, tbt_seconds, question.safety_factor, question.load(1).cached)
    largest, fitting = (
        largest_batch(serving, question.prompt, question.answer, one, calibration.constants)
        for one in (limits, replace(limits, tbt_seconds=None))
    )
    return batches_to_try(largest, (fitting, question.concurrency))


def _with_fleet(
    question: LlmQuestion, one: LlmCandidate, calibration: Calibration
) -> LlmCandidate | Rejected:
    """The candidate with the replicas that the arrivals need."""
    traffic = question.traffic
    assert traffic is not None, "only a question with arrivals has a fleet"
    pace = pace_of(one.serving, question.load(one.concurrency), calibration.constants)
    ttft = question.ttft_ms / 1e3 if question.ttft_ms is not None else None
    fleet = size_llm_fleet(traffic, pace, ttft, one.serving.gpus, one.machine.gpus // one.serving.gpus)
    if fleet is None:
        reason = f"more than {MAX_SERVERS} replicas for {traffic.peak_rate:.3g} requests per second"
        need = traffic.peak_rate * pace.replica_seconds
        return Rejected(one.machine.name, reason, need, MAX_SERVERS, "replicas")
    median = first_token_percentile(traffic, pace, fleet.replicas, 0.5)
    first = FirstToken(median, median, fleet.latency_p95, fleet.latency_p99)
    return _priced(question, replace(one, fleet=fleet, first=first), calibration)


def _priced(question: LlmQuestion, one: LlmCandidate, calibration: Calibration) -> LlmCandidate:
    """The candidate with the bill of its fleet, at the pace of the sequences that the arrivals reach."""
    traffic, fleet, price = question.traffic, one.fleet, one.machine.price
    assert traffic is not None, "only a question with arrivals has a fleet"
    assert fleet is not None, "only a question with arrivals has a fleet"
    pace = pace_of(one.serving, question.load(one.concurrency), calibration.constants)
    cost = bill(fleet, traffic, price, question.terms, service=pace.replica_seconds) if price else None
    reached = busiest_sequences(traffic, pace, fleet.replicas)
    load = question.load(reached)
    between = steady_token_seconds(
        one.serving, reached, load.prompt, load.answer, calibration.constants, cached=load.cached
    )
    tokens = traffic.per_day * question.answer
    return replace(one, bill=cost, between_tokens=between, reached=reached, tokens_per_day=tokens)


def decide_llm(
    question: LlmQuestion, candidates: Sequence[LlmCandidate], calibration: Calibration
) -> list[LlmCandidate]:
    """The candidates, cheapest first. Every one that could be the cheapest is simulated.

    The simulation only adds replicas, so what costs more by formulas than the cheapest simulated fleet cannot
    be cheaper.
    """
    ranked = sorted(candidates, key=_rank)
    if question.traffic is None or question.ttft_ms is None:
        return ranked
    found: list[LlmCandidate] = []
    best = math.inf
    for candidate in ranked:
        if (candidate.usd_per_day or math.inf) >= best:
            found.append(candidate)
        elif (exact := _simulated(question, candidate, calibration)) is not None:
            found.append(exact)
            best = min(best, exact.usd_per_day or math.inf)
    found.sort(key=_rank)
    return [_confirmed(question, found[0], calibration), *found[1:]] if found else []


def _confirmed(question: LlmQuestion, one: LlmCandidate, calibration: Calibration) -> LlmCandidate:
    """The candidate with the number of further simulations that miss the target."""
    traffic, fleet, ttft_ms = question.traffic, one.fleet, question.ttft_ms
    assert traffic is not None, "only a question with arrivals has a fleet"
    assert fleet is not None, "only a question with arrivals has a fleet"
    assert ttft_ms is not None, "only a target is simulated"
    pace = pace_of(one.serving, question.load(one.concurrency), calibration.constants)
    late = late_runs(traffic, pace, fleet.replicas, ttft_ms / 1e3)
    return replace(one, fleet=replace(fleet, confirming_runs=len(CONFIRMING_SEEDS), late_runs=late))


def _rank(candidate: LlmCandidate) -> tuple[float, float]:
    return candidate.usd_per_day or math.inf, candidate.between_tokens


def _simulated(question: LlmQuestion, one: LlmCandidate, calibration: Calibration) -> LlmCandidate | None:
    """The cheapest fleet of this group of GPUs in the simulation, with any limit on sequences."""
    best = _simulated_batch(question, one, calibration)
    for batch in _batches(question, one.serving, calibration):
        if best is not None and not _may_be_smaller(question, best, batch, calibration):
            continue
        other = _evaluate_batch(question, one.machine, one.serving, batch, calibration)
        if isinstance(other, Rejected) or (best is not None and _cost(other) >= _cost(best)):
            continue
        exact = _simulated_batch(question, other, calibration)
        if exact is not None and (best is None or _cost(exact) < _cost(best)):
            best = exact
    return best


def _simulated_batch(
    question: LlmQuestion, one: LlmCandidate, calibration: Calibration
) -> LlmCandidate | None:
    """The candidate with enough replicas in the simulation, whose latencies it states; None if none are."""
    traffic, fleet, ttft_ms = question.traffic, one.fleet, question.ttft_ms
    assert traffic is not None, "only a question with arrivals has a fleet"
    assert fleet is not None, "only a question with arrivals has a fleet"
    assert ttft_ms is not None, "only a target is simulated"
    pace, ttft = pace_of(one.serving, question.load(one.concurrency), calibration.constants), ttft_ms / 1e3
    replicas = fewest_simulated(traffic, pace, ttft, fleet.replicas)
    if replicas is None:
        return None
    gpus, stricter = one.serving.gpus, max(replicas, fleet.replicas_p99 or 0)
    sized = fleet_of(traffic, pace, replicas, stricter, gpus, one.machine.gpus // gpus)
    tokens = first_tokens(traffic, pace, replicas)
    p50, p95, p99 = (tokens.percentile(share) for share in (0.5, 0.95, 0.99))
    sized = replace(
        sized,
        wait_p95=p95 - pace.first_token,
        latency_p95=p95,
        latency_p99=p99,
        is_simulated=True,
    )
    first = FirstToken(tokens.mean, p50, p95, p99)
    return _priced(question, replace(one, fleet=sized, first=first), calibration)


def _late(
    question: LlmQuestion, machine: Machine, gpus: int, first_ms: float, between_ms: float
) -> Rejected | None:
    on, ttft, tbt = f"on {gpus} x {machine.gpu.name}", question.ttft_ms, question.tbt_ms
    if ttft is not None and first_ms > ttft:
        reason = f"{first_ms:.0f} ms to the first token at p95 {on}, the limit is {ttft:g} ms"
        return Rejected(machine.name, reason, first_ms, ttft, "ms to first token")
    if tbt is not None and between_ms > tbt:
        reason = f"{between_ms:.0f} ms between tokens {on}, the limit is {tbt:g} ms"
        return Rejected(machine.name, reason, between_ms, tbt, "ms between tokens")
    return None
