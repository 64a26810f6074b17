"""The first table of an answer: machines, money and risk of the decision."""

from collections.abc import Iterator
from math import inf

from filmgate.planner.answer import Answer
from filmgate.planner.fleet.answer import BlastRadius, CostAnswer, LlmFleetAnswer, VideoFleetAnswer
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.report.fleet_rows import Row, spare
from filmgate.planner.report.numbers import counted, interval, seconds, usd


def decision_rows(answer: Answer) -> Iterator[Row]:
    """No rows for an answer without a fleet or a cost."""
    fleet, cost = answer.fleet, answer.cost
    if cost is None:
        return
    if isinstance(fleet, LlmFleetAnswer):
        yield from _served(answer, fleet, cost)
    elif isinstance(fleet, VideoFleetAnswer) and fleet.size is not None:
        yield from _rendered(fleet, fleet.size, cost)


def _rendered(fleet: VideoFleetAnswer, size: Fleet, cost: CostAnswer) -> Iterator[Row]:
    yield "machines", _with_spare(size, fleet.machine)
    yield "per month", usd(cost.usd_per_month)
    yield "per clip", usd(cost.usd_per_clip)
    yield "p95, expected", seconds(size.latency_p95)
    if size.is_scaled:
        cold = f"{size.cold_share:.0%} of the clips wait for a start"
        yield "at zero", f"{24 - size.up_hours:.1f} h a day; {cold}"
    if size.worst_p95 is not None:
        yield f"p95, {_worst(size)}", seconds(size.worst_p95)
    if fleet.blast_radius:
        yield from _blast(fleet.blast_radius, "clips")


def _served(answer: Answer, fleet: LlmFleetAnswer, cost: CostAnswer) -> Iterator[Row]:
    arrivals, time, size = fleet.arrivals, answer.time, fleet.size
    machines = _with_spare(size, fleet.machine) if size else f"1 x {fleet.machine}"
    yield "machines", f"{machines}; {counted(fleet.gpus_per_replica, 'GPU')} per replica"
    yield "per month", usd(cost.usd_per_month)
    yield "per million answer tokens", usd(cost.usd_per_million_tokens)
    if time and time.tokens:
        yield "first token at p95, expected", seconds(time.tokens.first_token_ms_p95 / 1e3)
    if size and arrivals:
        yield f"first token at p95, {_worst(size)}", seconds(arrivals.worst_first_token_ms_p95 / 1e3)
    if time and time.tokens:
        yield "between tokens", interval(time.tokens.between_tokens_ms / 1e3, time.low, time.high)
    if size and arrivals:
        yield f"between tokens, {_worst(size)}", seconds(arrivals.worst_between_tokens_ms / 1e3)
    if fleet.blast_radius:
        yield from _blast(fleet.blast_radius, "answers")


def _with_spare(size: Fleet, machine: str) -> str:
    least = "0 to " if size.is_scaled else ""
    return f"{least}{size.instances} x {machine}, {spare(size)}"


def _worst(size: Fleet) -> str:
    return "upper end of the interval" + (", spare machines lost" if size.spare_instances else "")


def _blast(blast: BlastRadius, work: str) -> Iterator[Row]:
    during = ""
    if blast.latency_p95 is not None:
        is_overloaded = blast.latency_p95 == inf
        during = (
            ", the others are overloaded"
            if is_overloaded
            else f", p95 {seconds(blast.latency_p95)} meanwhile"
        )
    share = f"{blast.share_lost:.0%}" if blast.share_lost >= 0.01 else "less than 1%"
    lost = f"{share} of the fleet for {seconds(blast.recovery_seconds)}{during}"
    yield "one machine lost", f"{lost}; {work} that start again: {blast.interrupted}"
    zones = "two zones" if blast.zones > 1 else "one machine, so one zone: its loss stops the service"
    yield "zones", zones
