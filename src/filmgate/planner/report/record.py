"""The answer as an architecture decision record in Markdown."""

from collections.abc import Iterator
from datetime import date, timedelta
from math import inf

from filmgate.planner.answer import Answer, Kind
from filmgate.planner.fleet.answer import LlmFleetAnswer, UtilisationAnswer, VideoFleetAnswer
from filmgate.planner.fleet.sizing import Fleet
from filmgate.planner.report.numbers import seconds
from filmgate.planner.report.rows import chosen_quote
from filmgate.planner.report.tables import OPTIONS_TITLES, PLAN_B_TITLE, REJECTED_TITLE, Table, tables

REVISIT_DAYS = 90
MAX_COMPARED = 4
MIN_ZONES = 2
MIN_SAMPLES = 100  # of the metrics of a machine
IN_TIME = "Latency: p95 must meet the limit at the upper end of the interval{lost}."
COST = "Cost: every hour that a machine runs is paid, busy or idle."
LAW = "Law: the data and the provider stay in the jurisdiction of the region."
RUNTIME_OF_CLIPS = "Runtime: the plan recommends only what Filmgate can run."
RUNTIME_OF_ANSWERS = "Runtime: an engine such as vLLM serves the model; Filmgate does not."
MEASURED_LOAD = "Load: the machine must carry the measured p95 load and p99 memory, with headroom."
MEMORY_PEAK = "Memory: the peak of one clip, or of one sequence, must fit a GPU."
REVISIT_PLAN = (
    "when the volume doubles, a price changes by a tenth, or a measured time is outside the interval"
)
REVISIT = {
    Kind.FIT: "when the catalog has new models or prices",
    Kind.RIGHTSIZE: "when the load or a price changes by a tenth",
}


def to_record(answer: Answer, today: date) -> str:
    """Context, forces, options with pros and cons, decision, consequences, risks, rating, Plan B, revisit."""
    found = {table.title: table for table in tables(answer)}
    options = [found.pop(title) for title in (*OPTIONS_TITLES, REJECTED_TITLE) if title in found]
    plan_b = found.pop(PLAN_B_TITLE, None)
    parts = [
        f"# Capacity decision: {answer.question}",
        f"Status: proposed. Date: {today.isoformat()}.",
        "## Context",
        f"The question: {answer.question}.",
        "\n".join(f"- Assumption: {text}." for text in answer.assumptions),
        "## Forces",
        "\n".join(f"- {force}" for force in forces(answer)),
        "## Options",
        *(to_markdown(table) for table in options),
        "\n".join(pros_and_cons(answer)),
        "## Decision",
        answer.verdict,
        "## Consequences",
        *(to_markdown(table) for table in found.values()),
        "## Risks",
        "\n".join(f"- {risk}" for risk in risks(answer)),
        "## Rating",
        rating(answer),
        "## Plan B",
        to_markdown(plan_b) if plan_b else "None: the question has no answer to replace.",
        "## Tenancy",
        tenancy(answer),
        "## Revisit",
        f"On {today + timedelta(days=REVISIT_DAYS)}, or {REVISIT.get(answer.kind, REVISIT_PLAN)}.",
        "## Sources",
        "\n".join(f"- {source}" for source in answer.sources),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def forces(answer: Answer) -> tuple[str, ...]:
    """What the decision has to satisfy."""
    if answer.kind is Kind.RIGHTSIZE:
        return MEASURED_LOAD, COST
    if answer.kind is Kind.FIT:
        return MEMORY_PEAK, RUNTIME_OF_CLIPS
    size = _size(answer)
    lost = " and with the spare machines lost" if size and size.spare_instances else ""
    runtime = RUNTIME_OF_ANSWERS if answer.kind is Kind.LLM else RUNTIME_OF_CLIPS
    return IN_TIME.format(lost=lost), COST, LAW, runtime


def pros_and_cons(answer: Answer) -> list[str]:
    """One line for each of the first options."""
    if not answer.options or answer.kind in (Kind.FIT, Kind.RIGHTSIZE):
        return []
    quickest = min(option.seconds for option in answer.options)
    cheapest = min(option.usd_per_unit or inf for option in answer.options)
    lines = []
    for option in answer.options[:MAX_COMPARED]:
        is_quick, is_cheap = option.seconds == quickest, option.usd_per_unit == cheapest
        pros = [text for text, holds in (("cheapest", is_cheap), ("fastest", is_quick)) if holds]
        cons = []
        if not is_cheap and option.usd_per_unit and cheapest < inf:
            cons.append(f"{option.usd_per_unit / cheapest - 1:.0%} more expensive")
        if not is_quick:
            cons.append(f"{option.seconds / quickest:.1f} times the fastest time")
        if option.instances <= 2:
            cons.append(f"one machine is {1 / option.instances:.0%} of the fleet")
        lines.append(f"- {option.name}: pro: {', '.join(pros) or 'none'}; con: {', '.join(cons) or 'none'}.")
    return lines


def rating(answer: Answer) -> str:
    """How much the decision can be relied on, and what lowers that."""
    if not answer.is_possible:
        return "None: there is no decision."
    if answer.kind is Kind.FIT:
        return "None: this is a list, and not a decision."
    if (quote := chosen_quote(answer)) is not None:
        doubt = ": its latency is not published" if quote.typical_seconds is None else ""
        return f"Confidence: {'medium' if doubt else 'high'}{doubt}."
    time = answer.time
    doubts = list(_doubts_of_metrics(answer.fleet)) if isinstance(answer.fleet, UtilisationAnswer) else []
    if time and time.is_extrapolated:
        doubts.append("no run on this GPU")
    if (size := _size(answer)) and size.late_runs:
        doubts.append("some simulations miss the target")
    if any("estimate: the highest known price" in source for source in answer.sources):
        doubts.append("prices of other regions")
    level = ("high", "medium", "low")[min(len(doubts), 2)]
    return f"Confidence: {level}{': ' if doubts else ''}{'; '.join(doubts)}."


def _doubts_of_metrics(fleet: UtilisationAnswer) -> Iterator[str]:
    if not fleet.memory_p99_bytes:
        yield "memory is not recorded"
    if fleet.sm_p95 is None and fleet.dram_p95 is None:
        yield "SM and DRAM activity are not recorded"
    if fleet.samples < MIN_SAMPLES:
        yield f"only {fleet.samples} samples"


def _size(answer: Answer) -> Fleet | None:
    return answer.fleet.size if isinstance(answer.fleet, VideoFleetAnswer | LlmFleetAnswer) else None


def tenancy(answer: Answer) -> str:
    fleet = answer.fleet
    if not isinstance(fleet, VideoFleetAnswer):
        return "Not part of this question."
    if fleet.size and fleet.size.pools > 1:
        return f"{fleet.size.pools} tenants run on separate hardware; the machines and the bill include it."
    return f"Tenants: {fleet.tenants}. They share GPUs and have separate keys and queues."


def risks(answer: Answer) -> list[str]:
    """What could make the decision wrong."""
    if answer.kind is Kind.FIT:
        return ["Times are predictions; measure a clip before you buy a machine."]
    if (quote := chosen_quote(answer)) is not None:
        latency = "publishes no latency" if quote.typical_seconds is None else "does not promise its latency"
        return [f"{quote.name} {latency}; measure it.", *([f"{quote.note}."] if quote.note else [])]
    found = []
    time, memory, fleet = answer.time, answer.memory, answer.fleet
    if time and time.seconds_per_clip:
        found.append(
            f"A clip may take {seconds(time.low)} to {seconds(time.high)}; measure one before you commit."
        )
    if time and time.tokens:
        found.append(
            f"The mean time between tokens may be {seconds(time.low)} to {seconds(time.high)}; measure it "
            "before you commit."
        )
    if time and time.is_extrapolated:
        found.append("The catalog has no run on this GPU: the time is extrapolated from other GPUs.")
    if memory and memory.capacity_bytes:
        free = 1 - memory.peak_bytes / memory.capacity_bytes
        found.append(f"{free:.0%} of the device memory is free at the peak ({memory.peak_stage}).")
    if isinstance(fleet, VideoFleetAnswer | LlmFleetAnswer):
        found += _fleet_risks(fleet)
    if answer.cost:
        found += answer.cost.warnings
    found.append("Prices are from the dates in the sources and change; spot prices change hourly.")
    return found


def _fleet_risks(fleet: VideoFleetAnswer | LlmFleetAnswer) -> Iterator[str]:
    size = fleet.size
    if size:
        p99 = "p99" if isinstance(fleet, VideoFleetAnswer) else "p99 of the first token"
        yield f"{p99} is {seconds(size.latency_p99)}; the fleet is sized for p95."
    if size and size.late_runs:
        runs = f"{size.late_runs} of {size.confirming_runs}"
        yield f"{runs} further simulations miss the target at the upper end of the interval."
    if size and not size.spare_instances and size.instances > 1:
        yield "No machine is spare: while one is lost, the others may be overloaded."
    if isinstance(fleet, VideoFleetAnswer) and size and size.pools == 1 and fleet.tenants > 1:
        yield "Tenants share GPUs: a fault of the runtime is a fault of every tenant."
    if fleet.software.min_driver:
        yield f"Nodes need driver {fleet.software.min_driver} or later; check the image."
    if fleet.blast_radius and fleet.blast_radius.zones < MIN_ZONES:
        yield "One machine is in one zone: the loss of either stops the service."


def to_markdown(table: Table) -> str:
    lines = [f"### {table.title}", ""]
    lines.append("| " + " | ".join(_cell(text) for text in table.header) + " |")
    lines.append("|" + "---|" * len(table.header))
    lines += ["| " + " | ".join(_cell(text) for text in row) + " |" for row in table.rows]
    if table.note:
        lines += ["", table.note]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ") or " "
