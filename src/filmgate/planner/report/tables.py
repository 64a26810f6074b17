"""The tables of an answer as text, for the terminal, the decision record and the page."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from filmgate.models.quality import FULL
from filmgate.planner.answer import Answer, Kind, MemoryAnswer, Option, TimeAnswer, TokenTimes, Unit
from filmgate.planner.fleet.answer import (
    Alternative,
    CostAnswer,
    Deployment,
    LlmFleetAnswer,
    NodeSoftware,
    TokenQuote,
    VideoFleetAnswer,
)
from filmgate.planner.fleet.pattern import WORKLOADS
from filmgate.planner.report.numbers import count, gib, interval, seconds, usd
from filmgate.planner.report.rows import decision_rows, fleet_rows

DECISION_TITLE = "Decision"
PLAN_B_TITLE = "Plan B"
OPTIONS_TITLES = ("Options, best first", "Video models that fit", "Language models that fit")
REJECTED_TITLE = "Rejected"
MAX_UNGROUPED = 6


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables(answer: Answer) -> list[Table]:
    """Every table that has rows, most important first."""
    memory, time, fleet, cost = answer.memory, answer.time, answer.fleet, answer.cost
    found = [
        Table(DECISION_TITLE, ("", ""), tuple(decision_rows(answer))),
        _alternatives(PLAN_B_TITLE, answer.plan_b),
        *_options(answer),
        _rejected(answer),
    ]
    if memory:
        found += [_memory(memory), _memory_levers(memory)]
    if time:
        found.append(_time(time))
    if time and time.tokens:
        found.append(_tokens(time.tokens))
    if fleet:
        found.append(Table("Fleet", ("", ""), tuple(fleet_rows(fleet))))
    if cost:
        found += [_cost(cost), _managed(cost), _by_volume(cost), _regions(cost)]
    if isinstance(fleet, VideoFleetAnswer):
        others = _alternatives("Not with Filmgate", fleet.not_with_filmgate)
        found += [_deployment(_clip_deployment(fleet.deployment), fleet.software), others, WORKLOADS_TABLE]
    elif isinstance(fleet, LlmFleetAnswer):
        found += [_deployment(_answer_deployment(fleet), fleet.software), WORKLOADS_TABLE]
    return [table for table in found if table.rows]


WORKLOADS_TABLE = Table(
    "Serving patterns",
    ("workload", "AWS service", "with Filmgate"),
    tuple((work.name, work.aws, work.filmgate) for work in WORKLOADS),
)


def _alternatives(title: str, ways: Iterable[Alternative]) -> Table:
    rows = tuple(
        (
            way.name,
            way.what,
            seconds(way.seconds) if way.seconds is not None else "-",
            usd(way.usd_per_month),
            way.note,
        )
        for way in ways
    )
    return Table(title, ("way", "what", "time", "per month", "note"), rows)


def _deployment(rows: Iterable[tuple[str, str]], software: NodeSoftware) -> Table:
    needs = (
        ("driver", software.min_driver or "not known"),
        ("CUDA", software.min_cuda or "not known"),
        ("kernel modules", "open" if software.needs_open_modules else "open or proprietary"),
        ("Karpenter GPU name", software.karpenter_gpu_name or "not known"),
        ("NVENC engines", "not known" if software.nvenc is None else str(software.nvenc)),
    )
    return Table("What to deploy", ("", ""), (*rows, *needs))


def _answer_deployment(fleet: LlmFleetAnswer) -> Iterator[tuple[str, str]]:
    yield "instance type", fleet.machine
    if fleet.size:
        yield "machines", _machines_by_hour(fleet.size.instances, fleet.size.warm_instances)
    yield "replicas per machine", str(fleet.replicas_per_instance)
    yield "vllm serve", fleet.engine_arguments


def _machines_by_hour(machines: int, in_quiet_hours: int) -> str:
    return f"{machines}, in the quiet hours {in_quiet_hours}" if in_quiet_hours < machines else str(machines)


def _clip_deployment(deploy: Deployment) -> list[tuple[str, str]]:
    machines = _machines_by_hour(deploy.machines, deploy.machines_in_quiet_hours)
    return [
        ("instance type", deploy.instance_type),
        ("machines", f"0 to {deploy.machines}" if deploy.is_scaled_to_zero else machines),
        ("workers per machine", str(deploy.workers_per_machine)),
        ("zones", str(deploy.zones)),
        *([("worker entries, one per tenant", str(deploy.pools))] if deploy.pools > 1 else []),
        ("model", deploy.model),
        ("pipeline.offload", deploy.offload),
        ("pipeline.compile", deploy.compile),
        ("pipeline.dtype", deploy.dtype),
        ("pipeline.weights", deploy.weights),
        *_chart_rows(deploy),
        ("all values as a file", "filmgate deploy values --plan plan.json --model-name NAME"),
    ]


def _chart_rows(deploy: Deployment) -> Iterator[tuple[str, str]]:
    """The values of the chart that the plan decides, by their names there."""
    chart, family = deploy.chart, deploy.instance_type.partition(".")[0]
    if "." in deploy.instance_type:
        yield "workers.NAME.nodePool", family
    yield "workers.NAME.minReplicas", str(chart.min_replicas)
    yield "workers.NAME.maxReplicas", str(chart.max_replicas)
    if chart.spot_replicas:
        yield "workers.NAME-spot.minReplicas", str(chart.min_spot_replicas)
        yield "workers.NAME-spot.maxReplicas", str(chart.spot_replicas)
    if chart.replicas_while_active:
        yield "workers.NAME.scaling.replicasWhileActive", str(chart.replicas_while_active)
    if chart.scheduled_replicas:
        hours = f"{chart.scheduled_replicas} replicas from {chart.start_hour}:00 to {chart.end_hour}:00"
        yield "workers.NAME.scaling.schedule", hours
    yield "workers.NAME.scaling.backlogSecondsPerWorker", str(chart.backlog_seconds_per_worker)
    yield "workers.NAME.drainSeconds", str(chart.drain_seconds)
    if deploy.default_quality != FULL:
        yield "settings.admission.default_quality", deploy.default_quality
    if deploy.slo_seconds:
        yield "settings.admission.slo_seconds", f"{deploy.slo_seconds:g}"


def _options(answer: Answer) -> Iterator[Table]:
    """The machines, or for `plan fit` the models. Columns without a value are left out."""
    machines, clips, answers = OPTIONS_TITLES
    if answer.kind is not Kind.FIT:
        hidden = {"fleet"} if answer.kind is Kind.RIGHTSIZE else set()
        rows = [_option_cells(first, "machine", others) for first, *others in _grouped(answer.options)]
        yield _table_of_cells(machines, rows, hidden)
        return
    hidden = {"GPUs", "fleet", "busy", "$/h"}
    for title, unit in ((clips, Unit.CLIP), (answers, Unit.TOKENS)):
        rows = [_option_cells(option, "model") for option in answer.options if option.unit is unit]
        yield _table_of_cells(title, rows, hidden | ({"p95"} if unit is Unit.CLIP else set()))


def _option_cells(option: Option, what: str, others: Sequence[Option] = ()) -> dict[str, str]:
    """The cells of an option by column, with the other machines that have the same GPU."""
    is_llm = option.unit is Unit.TOKENS
    return {
        "#": str(option.rank),
        what: option.name,
        "GPUs": f"{option.gpus_per_replica} x {option.gpu}",
        "fleet": _machines(option),
        "between tokens" if is_llm else "time": (
            interval(option.seconds, option.low, option.high) if option.seconds else "-"
        ),
        "first token" if is_llm else "p95": seconds(option.latency_p95) if option.latency_p95 else "-",
        "busy": f"{option.utilisation:.0%}",
        "$/h": usd(option.usd_per_hour),
        f"$/{option.unit or ''}": usd(option.usd_per_unit),
        "memory per GPU": f"{gib(option.peak_bytes)}, {option.placement}" if option.peak_bytes else "-",
        "note": option.note or "-",
        "also": ", ".join(f"{o.name} {usd(o.usd_per_unit or o.usd_per_hour)}" for o in others) or "-",
    }


def _table_of_cells(title: str, rows: Sequence[dict[str, str]], hidden: set[str]) -> Table:
    columns = list(rows[0]) if rows else []
    shown = tuple(c for c in columns if c not in hidden and any(row[c] != "-" for row in rows))
    return Table(title, shown, tuple(tuple(row[column] for column in shown) for row in rows))


def _machines(option: Option) -> str:
    count = f"0 to {option.instances}" if option.is_scaled_to_zero else str(option.instances)
    return f"{count} ({option.replicas} replicas)" if option.replicas > 1 else count


def _grouped(options: Sequence[Option]) -> list[list[Option]]:
    """The options of one GPU together, best first; each on its own where there are few."""
    if len(options) <= MAX_UNGROUPED:
        return [[option] for option in options]
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.gpu, []).append(option)
    return list(groups.values())


def _rejected(answer: Answer) -> Table:
    """The machines with the same reason in one row."""
    names: dict[str, list[str]] = {}
    for one in answer.rejected:
        names.setdefault(one.reason, []).append(one.name)
    rows = tuple((", ".join(machines), reason) for reason, machines in names.items())
    return Table(REJECTED_TITLE, ("name", "reason"), rows)


def _memory(memory: MemoryAnswer) -> Table:
    rows = tuple(
        (line.name, gib(line.bytes), ", ".join(line.stages), "estimate" if line.is_estimate else "exact")
        for line in memory.lines
    )
    capacity = f" of {gib(memory.capacity_bytes)}" if memory.capacity_bytes else ""
    peak = f"Peak {gib(memory.peak_bytes)}{capacity} in {memory.peak_stage}"
    note = f"{peak}; estimates include a safety factor of {memory.safety_factor:g}."
    return Table("Memory per GPU", ("line", "size", "resident in", "kind"), rows, note)


def _memory_levers(memory: MemoryAnswer) -> Table:
    rows = tuple(
        (
            lever.name,
            gib(lever.peak_bytes),
            lever.peak_stage,
            "-" if lever.added_seconds is None else seconds(max(lever.added_seconds, 0.0)),
        )
        for lever in memory.levers
    )
    return Table("Changes to peak memory", ("change", "peak", "in", "added time"), rows)


def _time(time: TimeAnswer) -> Table:
    header = ("stage", "time", "arithmetic", "memory", "links", "bound")
    rows = tuple(
        (s.stage, seconds(s.seconds), seconds(s.compute), seconds(s.memory), seconds(s.interconnect), s.bound)
        for s in time.stages
    )
    return Table("Time by stage", header, rows, time.note)


def _tokens(tokens: TokenTimes) -> Table:
    """Latencies of a language model under load."""
    first = (tokens.first_token_ms_p50, tokens.first_token_ms_p95, tokens.first_token_ms_p99)
    between = (tokens.between_tokens_ms_p50, tokens.between_tokens_ms_p95, tokens.between_tokens_ms_p99)
    rows = tuple(
        (name, *(seconds(value / 1e3) for value in values))
        for name, values in (("first token", first), ("between tokens", between))
    )
    return Table("Latency under load", ("", "p50", "p95", "p99"), rows)


def _cost(cost: CostAnswer) -> Table:
    rows = [(label, usd(value)) for label, value in _prices(cost) if value is not None]
    rows += [
        (f"buy {part.instances} {part.how}", f"{usd(part.usd_per_hour)} per hour each; {part.note}")
        for part in cost.purchase
    ]
    rows += [
        (
            f"whole fleet: {way.name}",
            way.note if way.usd_per_month is None else f"{usd(way.usd_per_month)} per month; {way.note}",
        )
        for way in cost.purchase_options
    ]
    rows += [("before you commit", warning) for warning in cost.warnings]
    rows += [
        (f"with {lever.name}", "; ".join(text for text in (_saved(lever.saving), lever.note) if text))
        for lever in cost.levers
    ]
    return Table("Cost", ("", ""), tuple(rows))


def _saved(share: float) -> str:
    return f"saves {share:.0%}" if share >= 0.005 else "saves nothing"


def _prices(cost: CostAnswer) -> tuple[tuple[str, float | None], ...]:
    return (
        ("per clip", cost.usd_per_clip),
        ("per second of video", cost.usd_per_second_of_video),
        ("per million tokens", cost.usd_per_million_tokens),
        ("per instance-hour", cost.usd_per_hour),
        ("per day", cost.usd_per_day),
        ("per month", cost.usd_per_month),
        ("idle, per day", cost.idle_usd_per_day),
        ("warm pool, per day", cost.warm_usd_per_day),
    )


def _managed(cost: CostAnswer) -> Table:
    rows, unit = [], Unit.CLIP
    for quote in cost.managed:
        if isinstance(quote, TokenQuote):
            unit, state, price = Unit.TOKENS, "active", quote.usd_per_million_output_with_prompts
            volume, work = quote.break_even_tokens_per_day, "tokens"
        else:
            state, price = quote.state, quote.usd_per_clip
            volume, work = quote.break_even_clips_per_day, "clips"
        if volume is None:
            crossing = "no realistic volume"
        elif work == "clips" and volume <= 1:
            crossing = "the first clip"
        else:
            crossing = f"{count(ceil(volume))} {work} per day"
        rows.append((quote.name, state, usd(price), crossing, quote.note))
    header = ("API", "state", f"$/{unit}", "your own fleet is cheaper from", "note")
    return Table("Managed APIs", header, tuple(rows))


def _by_volume(cost: CostAnswer) -> Table:
    rows = tuple(
        (f"{row.factor} x", count(row.clips_per_day), usd(row.usd_per_day), usd(row.usd_per_clip))
        for row in cost.by_volume
    )
    return Table("Cost by volume", ("volume", "clips per day", "$/day", "$/clip"), rows)


def _regions(cost: CostAnswer) -> Table:
    rows = tuple(
        (
            row.region,
            row.jurisdiction or "-",
            "yes" if row.is_allowed else "no: outside the residency",
            usd(row.usd_per_hour),
            usd(row.usd_per_month),
            f"{usd(row.spot_min)} to {usd(row.spot_max)}" if row.spot_min is not None else "-",
        )
        for row in cost.regions
    )
    header = ("region", "jurisdiction", "allowed", "$/h", "fleet per month on demand", "spot $/h")
    return Table("Price of the machine by region", header, rows)
