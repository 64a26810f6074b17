"""The tables of an answer, once: header and rows of text, for the terminal, the record and the page alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from filmgate.planner.answer import Answer, Json
from filmgate.planner.report.numbers import count, gib, seconds, usd


@dataclass(frozen=True, slots=True)
class Table:
    """A titled table of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def tables(answer: Answer) -> list[Table]:
    """Every table that has something to say, most wanted first."""
    makers = (_options, _rejected, _memory, _levers, _time, _fleet, _cost, _managed, _growth, _regions)
    return [table for make in makers if (table := make(answer)) and table.rows]


def _options(answer: Answer) -> Table:
    is_llm = answer.unit == "million tokens"
    header = (
        "#",
        "what",
        "GPUs",
        "replicas",
        "instances",
        "between tokens" if is_llm else "time",
        "first token" if is_llm else "p95",
        "use",
        "$/h",
        f"$/{answer.unit}",
        "peak",
        "placement",
    )
    rows = tuple(
        (
            str(o.rank),
            o.name,
            f"{o.gpus_per_replica} x {o.gpu}",
            str(o.replicas),
            str(o.instances),
            f"{seconds(o.seconds)} ({seconds(o.low)} to {seconds(o.high)})" if o.seconds else "-",
            seconds(o.latency_p95) if o.latency_p95 else "-",
            f"{o.utilisation:.0%}",
            usd(o.usd_per_hour),
            usd(o.usd_per_unit),
            gib(o.peak_bytes) if o.peak_bytes else "-",
            o.placement,
        )
        for o in answer.options
    )
    return Table("What fits, best first", header, rows)


def _rejected(answer: Answer) -> Table:
    rows = tuple((r.name, r.reason) for r in answer.rejected)
    return Table("What does not, and the number that says so", ("what", "why not"), rows)


def _memory(answer: Answer) -> Table | None:
    memory = answer.memory
    if memory is None:
        return None
    rows = tuple(
        (line.name, gib(line.bytes), ", ".join(line.stages), "estimate" if line.is_estimate else "exact")
        for line in memory.lines
    )
    capacity = f" of {gib(memory.capacity_bytes)}" if memory.capacity_bytes else ""
    peak = f"Peak {gib(memory.peak_bytes)}{capacity} in {memory.peak_stage}"
    note = f"{peak}; estimates carry a factor of {memory.safety_factor:g}."
    return Table("Memory of one GPU", ("line", "size", "resident in", ""), rows, note)


def _levers(answer: Answer) -> Table | None:
    if answer.memory is None:
        return None
    rows = tuple(
        (
            lever.name,
            gib(lever.peak_bytes),
            lever.peak_stage,
            "-" if lever.added_seconds is None else seconds(max(lever.added_seconds, 0.0)),
        )
        for lever in answer.memory.levers
    )
    return Table("What moves the peak", ("change", "peak", "in", "adds"), rows)


def _time(answer: Answer) -> Table | None:
    time = answer.time
    if time is None:
        return None
    rows = tuple(
        (s.stage, seconds(s.seconds), seconds(s.compute), seconds(s.memory), seconds(s.interconnect), s.bound)
        for s in time.stages
    )
    return Table(
        "Time by stage", ("stage", "time", "arithmetic", "memory", "links", "bound"), rows, time.note
    )


def _fleet(answer: Answer) -> Table | None:
    fleet = answer.fleet
    if not fleet:
        return None
    rows = [("pattern", str(fleet["pattern"]))] if "pattern" in fleet else []
    rows += [("because", str(reason)) for reason in _list(fleet.get("reasons"))]
    for key in ("replicas", "replicas_p99", "instances", "warm_replicas", "sequences_per_replica"):
        if fleet.get(key) is not None:
            rows.append((key.replace("_", " "), str(fleet[key])))
    for key in ("first_token_ms_p95", "first_token_ms_p99"):
        if fleet.get(key) is not None:
            rows.append((key.replace("_ms_", " at ").replace("_", " "), seconds(_number(fleet[key]) / 1e3)))
    for start in _dicts(fleet.get("cold_start")):
        rows.append((f"cold start: {start['source']}", seconds(_number(start["total_seconds"]))))
    for wall in _dicts(fleet.get("isolation")):
        verdict = "yes" if wall["is_possible"] else "no"
        cost = (
            f", {usd(_number(wall['usd_per_tenant_month']))} a tenant and month"
            if wall["usd_per_tenant_month"]
            else ""
        )
        rows.append((f"isolation: {wall['level']}", f"{verdict}: {wall['reason']}{cost}"))
    skipped = {"pattern", "reasons", "cold_start", "isolation", "machine"}
    if "replicas" not in fleet:
        rows += [
            (k.replace("_", " "), str(v)) for k, v in fleet.items() if k not in skipped and v is not None
        ]
    return Table("Fleet", ("", ""), tuple(rows))


def _cost(answer: Answer) -> Table | None:
    cost = answer.cost
    if not cost:
        return None
    keys = (
        ("usd_per_clip", "a clip"),
        ("usd_per_second_of_video", "a second of video"),
        ("usd_per_million_tokens", "a million tokens"),
        ("usd_per_hour", "an instance-hour"),
        ("usd_per_day", "a day"),
        ("usd_per_month", "a month"),
        ("idle_usd_per_day", "idle, a day"),
        ("warm_usd_per_day", "warm pool, a day"),
    )
    rows = [(label, usd(_number(cost[key]))) for key, label in keys if cost.get(key) is not None]
    rows += [
        (
            f"buy {part['instances']} {part['how']}",
            f"{usd(_number(part['usd_per_hour']))} an hour each; {part['note']}",
        )
        for part in _dicts(cost.get("purchase"))
    ]
    rows += [
        (
            f"lever: {lever['name']}",
            f"saves {_number(lever['saving']):.0%}; {lever.get('note', '')}".rstrip("; "),
        )
        for lever in _dicts(cost.get("levers"))
    ]
    return Table("Money", ("", ""), tuple(rows))


def _managed(answer: Answer) -> Table | None:
    offers = _dicts((answer.cost or {}).get("managed"))
    rows = tuple(
        (
            str(offer.get("name", offer["id"])),
            str(offer.get("state", "active")),
            usd(_number(offer.get("usd_per_clip", offer.get("usd_per_million_output_with_prompts")))),
            _crossing(offer),
            str(offer.get("note", "")),
        )
        for offer in offers
    )
    return Table("Managed instead", ("API", "state", f"$/{answer.unit}", "own is cheaper from", "note"), rows)


def _crossing(offer: Json) -> str:
    clips, tokens = offer.get("break_even_clips_per_day"), offer.get("break_even_tokens_per_day")
    if clips is not None:
        return f"{count(_number(clips))} clips a day" if _number(clips) > 1 else "the first clip"
    return f"{count(_number(tokens))} tokens a day" if tokens is not None else "never in reason"


def _growth(answer: Answer) -> Table | None:
    rows = tuple(
        (
            f"{row['factor']} x",
            count(_number(row["clips_per_day"])),
            usd(_maybe(row["usd_per_day"])),
            usd(_maybe(row["usd_per_clip"])),
        )
        for row in _dicts((answer.cost or {}).get("growth"))
    )
    return Table("If volume grows", ("volume", "clips a day", "$ a day", "$ a clip"), rows)


def _regions(answer: Answer) -> Table | None:
    rows = tuple(
        (
            str(row["region"]),
            str(row["jurisdiction"]),
            usd(_maybe(row["usd_per_hour"])),
            f"{usd(_maybe(row['spot_min']))} to {usd(_maybe(row['spot_max']))}",
        )
        for row in _dicts((answer.cost or {}).get("regions"))
    )
    return Table("Where the machine is", ("region", "jurisdiction", "$/h", "spot"), rows)


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[Json]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _number(value: object) -> float:
    return float(str(value)) if value is not None else 0.0


def _maybe(value: object) -> float | None:
    return None if value is None else _number(value)
