"""The rows of the decision table and of the fleet table, for each kind of answer."""

from collections.abc import Iterable, Iterator
from math import inf

from filmgate.planner.answer import Answer
from filmgate.planner.fleet.answer import (
    BlastRadius,
    ClipQuote,
    CostAnswer,
    FleetAnswer,
    LlmFleetAnswer,
    UtilisationAnswer,
    VideoFleetAnswer,
    cheapest,
)
from filmgate.planner.fleet.isolation import Isolation
from filmgate.planner.fleet.money import DAYS_PER_MONTH
from filmgate.planner.fleet.pattern import Pattern
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.fleet.starts import ColdStart
from filmgate.planner.report.numbers import count, counted, digits, gib, interval, seconds, usd

Row = tuple[str, str]


def decision_rows(answer: Answer) -> Iterator[Row]:
    """No rows for an answer without a fleet or a cost."""
    fleet, cost = answer.fleet, answer.cost
    if cost is None:
        return
    if isinstance(fleet, LlmFleetAnswer):
        yield from _served(answer, fleet, cost)
    elif isinstance(fleet, VideoFleetAnswer) and fleet.size is not None:
        quote = chosen_quote(answer)
        rows = _bought(quote, fleet, fleet.size, cost) if quote else _rendered(fleet, fleet.size, cost)
        yield from rows


def chosen_quote(answer: Answer) -> ClipQuote | None:
    """The managed API that the answer recommends; None for a fleet."""
    fleet, cost = answer.fleet, answer.cost
    is_managed = isinstance(fleet, VideoFleetAnswer) and fleet.pattern == Pattern.MANAGED
    return cheapest(cost.managed) if is_managed and cost else None


def _bought(quote: ClipQuote, fleet: VideoFleetAnswer, size: Fleet, cost: CostAnswer) -> Iterator[Row]:
    """The managed API, and the fleet that it is compared with."""
    yield "managed API", quote.name
    if fleet.arrivals:
        yield "per month", usd(quote.usd_per_clip * fleet.arrivals.per_day * DAYS_PER_MONTH)
    yield "per clip", usd(quote.usd_per_clip)
    yield "latency", seconds(quote.typical_seconds) if quote.typical_seconds else "not published"
    own = f"{_with_spare(size, fleet.machine)}; {usd(cost.usd_per_month)} per month"
    yield "your own fleet instead", f"{own}, {usd(cost.usd_per_clip)} per clip"


def _rendered(fleet: VideoFleetAnswer, size: Fleet, cost: CostAnswer) -> Iterator[Row]:
    yield "machines", _with_spare(size, fleet.machine)
    yield "per month", usd(cost.usd_per_month)
    yield "per clip", usd(cost.usd_per_clip)
    yield "p95, expected", seconds(size.latency_p95)
    if size.is_scaled:
        cold = f"{size.cold_share:.0%} of the clips wait for a start"
        yield "at zero", f"{24 - size.up_hours:.1f} hours per day; {cold}"
    if size.worst_p95 is not None:
        yield f"p95, {_worst(size)}", seconds(size.worst_p95)
    if fleet.blast_radius:
        yield from _blast(fleet.blast_radius, "clip")


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
        yield "between tokens, mean", interval(time.tokens.between_tokens_ms / 1e3, time.low, time.high)
    if size and arrivals:
        yield f"between tokens, mean, {_worst(size)}", seconds(arrivals.worst_between_tokens_ms / 1e3)
    if fleet.blast_radius:
        yield from _blast(fleet.blast_radius, "answer")


def _with_spare(size: Fleet, machine: str) -> str:
    least = "0 to " if size.is_scaled else ""
    return f"{least}{size.instances} x {machine}, {spare(size)}"


def _worst(size: Fleet) -> str:
    return "upper end of the interval" + (", spare machines lost" if size.spare_instances else "")


def _blast(blast: BlastRadius, work: str) -> Iterator[Row]:
    during = ""
    if blast.latency_p95 == inf:
        during = "; the others are overloaded"
    elif blast.latency_p95 is not None:
        during = f"; p95 is {seconds(blast.latency_p95)} meanwhile"
    share = f"{blast.share_lost:.0%}" if blast.share_lost >= 0.01 else "less than 1%"
    verb = "starts" if blast.interrupted == 1 else "start"
    lost = f"{share} of the fleet is missing for {seconds(blast.recovery_seconds)}{during}"
    yield "if one machine is lost", f"{lost}; {counted(blast.interrupted, work)} {verb} again"
    yield "zones", "two" if blast.zones > 1 else "one, for the single machine: its loss stops the service"


def fleet_rows(fleet: FleetAnswer) -> Iterator[Row]:
    if isinstance(fleet, UtilisationAnswer):
        yield from _utilisation(fleet)
        return
    yield "pattern", fleet.pattern
    yield from (("reason", reason) for reason in fleet.reasons)
    if isinstance(fleet, LlmFleetAnswer):
        yield from _llm(fleet)
    else:
        yield from _video(fleet)


def _video(fleet: VideoFleetAnswer) -> Iterator[Row]:
    if fleet.size:
        yield from _size(fleet.size, "formulas: the fleet is too large for a queue")
    yield from _cold_starts(fleet.cold_start)
    yield from _isolation(fleet.isolation)
    nvme = fleet.text_encoder_on_nvme
    yield "video encoding on", fleet.software.encode_on
    yield "text encoder on NVMe (not with Filmgate)", f"{_worth(is_worth_it=nvme.is_worth_it)}: {nvme.reason}"


def _llm(fleet: LlmFleetAnswer) -> Iterator[Row]:
    yield "GPUs per replica", str(fleet.gpus_per_replica)
    if fleet.size and fleet.arrivals:
        yield from _size(fleet.size, "formulas: no limit on the first token")
        yield "sequences per replica", str(fleet.arrivals.sequences_per_replica)
    else:
        yield "replicas per instance", str(fleet.replicas_per_instance)
        yield "sequences per instance", str(fleet.sequences_per_instance)
    yield from _cold_starts(fleet.cold_start)
    yield from _isolation(fleet.isolation)
    cache = fleet.cache_on_nvme
    times = f"{seconds(cache.read_seconds)} to read, {seconds(cache.recompute_seconds)} to compute again"
    verdict = _worth(is_worth_it=cache.is_worth_it)
    yield "KV cache of a paused sequence on NVMe", f"{verdict}: {gib(cache.bytes)}, {times}"


def spare(size: Fleet) -> str:
    return f"{size.spare_instances} of them spare" if size.spare_instances else "none of them spare"


def _size(size: Fleet, unsimulated: str) -> Iterator[Row]:
    yield "replicas", str(size.replicas)
    if size.replicas_p99 is not None:
        yield "replicas for p99", str(size.replicas_p99)
    yield "instances", f"{size.instances}, {spare(size)}"
    yield "replicas that meet the target", str(size.needed_replicas)
    yield "warm replicas", str(size.warm_replicas)
    if size.machine_hours is not None:
        hours = f"{digits(size.machine_hours)} hours per day for all machines together"
        yield "machine time", f"{hours}; at least one runs for {size.up_hours:.3g} hours"
        yield "clips that wait for a start", f"{size.cold_share:.0%}"
    yield "sized by", "simulation" if size.is_simulated else unsimulated
    if size.pools > 1:
        yield "tenants on separate hardware", str(size.pools)


def _cold_starts(starts: Iterable[ColdStart]) -> Iterator[Row]:
    for start in starts:
        parts = (
            ("node", start.boot_seconds),
            ("image", start.image_seconds),
            ("weights", start.load_seconds),
            ("compilers", start.build_seconds),
        )
        detail = ", ".join(f"{name} {seconds(value)}" for name, value in parts if value)
        yield f"cold start: {start.source}", f"{seconds(start.total_seconds)}: {detail}"


def _isolation(levels: Iterable[Isolation]) -> Iterator[Row]:
    for level in levels:
        cost = level.usd_per_tenant_month
        price = f"; {usd(cost)} per tenant per month" if cost else ""
        yield f"isolation: {level.level}", f"{'yes' if level.is_possible else 'no'}: {level.reason}{price}"


def _utilisation(fleet: UtilisationAnswer) -> Iterator[Row]:
    yield "judgement", fleet.judgement
    yield "samples", count(fleet.samples)
    yield "GPU utilization, p50", f"{fleet.gpu_p50:.0%}"
    yield "GPU utilization, p95", f"{fleet.gpu_p95:.0%}"
    if fleet.memory_p99_bytes:
        yield "memory in use, p99", f"{gib(fleet.memory_p99_bytes)}, {fleet.memory_share:.0%} of the device"
    if fleet.sm_p95 is not None:
        yield "SM active, p95", f"{fleet.sm_p95:.0%}"
    if fleet.dram_p95 is not None:
        yield "DRAM active, p95", f"{fleet.dram_p95:.0%}"


def _worth(*, is_worth_it: bool) -> str:
    return "worth it" if is_worth_it else "not worth it"
