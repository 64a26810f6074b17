"""Groups of GPUs of a machine that serve a language model within the limits, and the cheapest of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import GIB
from filmgate.catalog.instances import Price
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.money import DAYS_PER_MONTH, Bill, Order
from filmgate.planner.fleet.queueing import MAX_SERVERS
from filmgate.planner.fleet.sizing import Fleet, Layout
from filmgate.planner.fleet.starts import ColdStart, Start, cold_starts
from filmgate.planner.intervals import llm_upper_end
from filmgate.planner.llm.arrivals import (
    RequestDemand,
    batches_to_try,
    busiest_sequences,
    fewest_by_formulas,
    fewest_possible,
    largest_batch,
    pace_of,
)
from filmgate.planner.llm.loaded import FirstToken, loaded_first_token, prefill_seconds
from filmgate.planner.llm.memory import cache_capacity, llm_budget, usable_bytes
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.simulation import confirm, fewest_simulated, request_fleet
from filmgate.planner.llm.step_time import Serving, weight_bytes
from filmgate.planner.machines import Machine
from filmgate.planner.memory import MemoryBudget
from filmgate.planner.report.numbers import seconds

ENGINE = "vllm"
USABLE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class LlmCandidate:
    """A machine and a tensor-parallel group that meet the requirements of a question.

    `first` and `between_tokens` are expected times; `upper_end` times as long is the upper end of their
    interval. `worst_between_tokens` is at the upper end, in a fleet with the spare machines lost.
    `concurrency` is the limit on the sequences of a replica; `sequences` are those that arrivals reach in the
    busiest hour, or all of them.
    """

    question: LlmQuestion
    machine: Machine
    serving: Serving
    memory: MemoryBudget
    first: FirstToken
    between_tokens: float
    concurrency: int
    sequences: int
    upper_end: float
    worst_between_tokens: float
    demand: RequestDemand | None = None
    fleet: Fleet | None = None
    bill: Bill | None = None

    @property
    def capacity(self) -> int:
        """The most sequences that the memory of a replica can hold."""
        question, cached = self.question, self.question.load(1).cached
        return int(cache_capacity(self.serving, question.context, question.safety_factor, cached))

    @property
    def layout(self) -> Layout:
        gpus = self.serving.gpus
        return Layout(gpus, self.machine.gpus // gpus, spare_machines=self.question.spare_machines)

    @property
    def tokens_per_day(self) -> float | None:
        """Answer tokens of the requests."""
        return self.demand.traffic.per_day * self.question.answer_tokens if self.demand else None

    @property
    def worst_first_token(self) -> float:
        """Seconds to the first token at p95, at the upper end and with the spare machines lost."""
        worst = self.fleet.worst_p95 if self.fleet else None
        return worst if worst is not None else self.first.p95 * self.upper_end

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens of the whole machine; each group of GPUs serves separate sequences."""
        groups, answer = self.machine.gpus // self.serving.gpus, self.question.answer_tokens
        return groups * self.sequences * answer / (self.first.mean + answer * self.between_tokens)

    @property
    def seconds(self) -> float:
        """Seconds between tokens."""
        return self.between_tokens

    @property
    def usd_per_unit(self) -> float | None:
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

    @property
    def usd_per_month(self) -> float | None:
        return self.usd_per_day * DAYS_PER_MONTH if self.usd_per_day is not None else None

    @property
    def cold_starts(self) -> tuple[ColdStart, ...]:
        stored = weight_bytes(self.question.model, self.question.precision)
        return cold_starts(stored, self.machine.instance, self.machine.gpu)

    @property
    def order(self) -> Order | None:
        """What has to be bought; None without a fleet or a price."""
        price, start = self.machine.price, Start.slowest(self.cold_starts).new_machine
        if self.demand is None or self.fleet is None or price is None:
            return None
        return Order(self.fleet, self.demand.traffic, price, self.demand.pace.replica_seconds, start)

    def priced(self) -> "LlmCandidate":
        """With the bill of its fleet."""
        order = self.order
        return replace(self, bill=order.bill(self.question.terms) if order else None)

    def at(self, price: Price) -> "LlmCandidate":
        """The same fleet at the price of another region."""
        return replace(self, machine=replace(self.machine, price=price)).priced()


def evaluate_llm(
    question: LlmQuestion, machine: Machine, calibration: Calibration
) -> LlmCandidate | Rejected:
    """The cheapest group of GPUs that fits the model and its cache and meets the latency targets."""
    groups = [n for n in (1, 2, 4, 8) if n <= machine.gpus]
    outcomes = [_evaluate_group(question, machine, gpus, calibration) for gpus in groups]
    found = [o for o in outcomes if isinstance(o, LlmCandidate)]
    if not found:
        return next(o for o in reversed(outcomes) if isinstance(o, Rejected))
    return min(found, key=lambda c: (c.usd_per_day or 0.0, c.usd_per_unit or 0.0, c.serving.gpus))


def _evaluate_group(
    question: LlmQuestion, machine: Machine, gpus: int, calibration: Calibration
) -> LlmCandidate | Rejected:
    share = USABLE_SHARE / question.budget_margin
    serving = Serving(
        question.model, machine.gpu, gpus, question.precision, question.kv_precision, ENGINE, share
    )
    if question.traffic is None:
        return _evaluate_batch(question, machine, serving, question.concurrency, calibration)
    batches = _batches(question, serving, calibration)
    return _cheapest_fleet(question, machine, serving, batches, calibration)


def _cheapest_fleet(
    question: LlmQuestion,
    machine: Machine,
    serving: Serving,
    batches: Iterable[int],
    calibration: Calibration,
    *,
    is_simulated: bool = False,
) -> LlmCandidate | Rejected:
    """The fleet with the limit on sequences that needs the fewest machines; the first of equal ones."""
    per_machine, at_most = machine.gpus // serving.gpus, MAX_SERVERS
    best: tuple[LlmCandidate, int] | None = None
    rejected: Rejected | None = None
    for batch in batches:
        one = _evaluate_batch(question, machine, serving, batch, calibration)
        if isinstance(one, Rejected):
            rejected = one
            continue
        demand = _demand(one)
        needed = _needed(demand, at_most, is_simulated=is_simulated)
        if needed is not None:
            best, at_most = (one, needed), (math.ceil(needed / per_machine) - 1) * per_machine
        elif best is None:
            rejected = _too_many(machine, demand)
    if best is not None:
        return _with_fleet(*best, calibration, is_simulated=is_simulated)
    assert rejected is not None, "a batch of one is always tried"
    return rejected


def _needed(demand: RequestDemand, at_most: int, *, is_simulated: bool) -> int | None:
    """The fewest replicas that meet the target, if they are at most this many."""
    if fewest_possible(demand) > at_most:
        return None
    needed = fewest_by_formulas(demand)
    if needed is None or needed > at_most:
        return None
    return fewest_simulated(demand, needed, at_most) if is_simulated else needed


def _too_many(machine: Machine, demand: RequestDemand) -> Rejected:
    rate = demand.traffic.peak_rate
    reason = f"{rate:,.0f} requests per second need more than {MAX_SERVERS} replicas"
    need = rate * demand.pace_high.replica_seconds
    return Rejected(machine.name, reason, need, MAX_SERVERS, "replicas")


def _evaluate_batch(
    question: LlmQuestion, machine: Machine, serving: Serving, batch: int, calibration: Calibration
) -> LlmCandidate | Rejected:
    """One replica with this limit on sequences, held to the limits at the upper end of the interval."""
    constants, load, gpus = calibration.constants, question.load(batch), serving.gpus
    memory = llm_budget(serving, question.context, batch, question.safety_factor, load.cached)
    need, have = memory.peak_bytes / GIB, usable_bytes(serving) / GIB
    if memory.peak_bytes > usable_bytes(serving):
        reason = f"needs {need:.1f} GiB per GPU on {gpus} x {machine.gpu.name}; {have:.1f} GiB are usable"
        return Rejected(machine.name, reason, need, have, "GiB")
    pace, upper_end = pace_of(serving, load, constants), llm_upper_end(machine.gpu, calibration)
    demand = None
    if question.traffic is None:
        first = loaded_first_token(serving, load, constants)
    else:  # with arrivals, the fleet's queue is the load
        idle = prefill_seconds(serving, question.load(1), constants)
        first = FirstToken.of([idle])
        high = pace.slower(upper_end)
        demand = RequestDemand(question.traffic, pace, high, question.ttft_seconds, question.has_target)
    between = pace.between_tokens
    one = LlmCandidate(
        question,
        machine,
        serving,
        memory,
        first,
        between_tokens=between,
        concurrency=batch,
        sequences=batch,
        upper_end=upper_end,
        worst_between_tokens=between * upper_end,
        demand=demand,
    )
    return _late(one) or one


def _late(one: LlmCandidate) -> Rejected | None:
    question, on = one.question, f"on {one.serving.gpus} x {one.machine.gpu.name}"
    for name, expected, high, limit in (
        ("to the first token at p95", one.first.p95, one.worst_first_token, question.ttft_seconds),
        ("between tokens on average", one.between_tokens, one.worst_between_tokens, question.tbt_seconds),
    ):
        if limit is not None and high > limit:
            reason = (
                f"takes {seconds(expected)} {name} {on}, up to {seconds(high)}; the limit is {seconds(limit)}"
            )
            unit = "ms to first token" if "first" in name else "ms between tokens"
            return Rejected(one.machine.name, reason, high * 1e3, limit * 1e3, unit)
    return None


def _batches(question: LlmQuestion, serving: Serving, calibration: Calibration) -> list[int]:
    """Limits on sequences that memory and the time between tokens allow, largest first."""
    slowest = question.tbt_seconds
    if slowest is not None:
        slowest /= llm_upper_end(serving.gpu, calibration)
    most, safety_factor = question.load(question.concurrency), question.safety_factor
    largest, fitting = (
        largest_batch(serving, most, limit, safety_factor, calibration.constants) for limit in (slowest, None)
    )
    return batches_to_try(largest, (fitting, question.concurrency))


def _demand(one: LlmCandidate) -> RequestDemand:
    assert one.demand is not None, "only a question with arrivals has a fleet"
    return one.demand


def _with_fleet(
    one: LlmCandidate, needed: int, calibration: Calibration, *, is_simulated: bool
) -> LlmCandidate:
    """The candidate with its fleet and the bill, at the pace of the sequences that the arrivals reach."""
    demand, constants = _demand(one), calibration.constants
    question, traffic, pace = one.question, demand.traffic, demand.pace
    fleet, first = request_fleet(demand, one.layout, needed, is_simulated=is_simulated)
    reached = busiest_sequences(traffic, pace, fleet.replicas)
    worst = busiest_sequences(traffic, demand.pace_high, needed)
    between, slowest = (
        pace_of(one.serving, question.load(sequences), constants).between_tokens
        for sequences in (reached, worst)
    )
    return replace(
        one,
        fleet=fleet,
        first=first,
        between_tokens=between,
        worst_between_tokens=slowest * one.upper_end,
        sequences=reached,
    ).priced()


def decide_llm(
    candidates: Sequence[LlmCandidate], calibration: Calibration
) -> tuple[list[LlmCandidate], list[Rejected]]:
    """The candidates, cheapest first, and the rejections of those that the simulation finds too small.

    Every candidate that could be the cheapest is simulated. The simulation only adds replicas, so what costs
    more by formulas than the cheapest simulated fleet cannot be cheaper.
    """
    found: list[LlmCandidate] = []
    rejected: list[Rejected] = []
    best = math.inf
    for candidate in sorted(candidates, key=_rank):
        if (candidate.usd_per_day or math.inf) >= best:
            found.append(candidate)
            continue
        exact = simulated_llm(candidate, calibration)
        if isinstance(exact, Rejected):
            rejected.append(exact)
            continue
        found.append(exact)
        best = min(best, exact.usd_per_day or math.inf)
    return sorted(found, key=_rank), rejected


def _rank(candidate: LlmCandidate) -> tuple[float, float]:
    return candidate.usd_per_day or math.inf, candidate.between_tokens


def confirmed_llm(one: LlmCandidate) -> LlmCandidate:
    """The candidate with the number of further simulations that miss the target."""
    return replace(one, fleet=confirm(_demand(one), one.fleet)) if one.fleet else one


def simulated_llm(one: LlmCandidate, calibration: Calibration) -> LlmCandidate | Rejected:
    """The cheapest fleet of this group of GPUs in the simulation, with any limit on sequences.

    Only a fleet with a limit on the first token is simulated; others are returned as they are.
    """
    if one.demand is None or one.demand.ttft_seconds is None:
        return one
    question, machine, serving = one.question, one.machine, one.serving
    batches = (one.concurrency, *_batches(question, serving, calibration))
    return _cheapest_fleet(question, machine, serving, batches, calibration, is_simulated=True)
