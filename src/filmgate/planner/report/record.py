"""The answer as an architecture decision record in Markdown."""

from datetime import date, timedelta

from filmgate.planner.answer import Answer
from filmgate.planner.fleet.answer import VideoFleetAnswer
from filmgate.planner.report.numbers import seconds
from filmgate.planner.report.tables import OPTIONS_TITLE, REJECTED_TITLE, Table, tables

REVISIT_DAYS = 90
REVISIT = (
    "On {date}, or when the volume doubles, a price changes by a tenth, or a measured clip is outside the "
    "interval."
)


def to_record(answer: Answer, today: date) -> str:
    """Context, options, decision, consequences, risks and a revisit date."""
    found = {table.title: table for table in tables(answer)}
    options = [found.pop(title) for title in (OPTIONS_TITLE, REJECTED_TITLE) if title in found]
    parts = [
        f"# Capacity decision: {answer.question}",
        f"Status: proposed. Date: {today.isoformat()}.",
        "## Context",
        f"The question: {answer.question}.",
        "\n".join(f"- Assumption: {text}." for text in answer.assumptions),
        "## Options",
        *(to_markdown(table) for table in options),
        "## Decision",
        answer.verdict,
        "## Consequences",
        *(to_markdown(table) for table in found.values()),
        "## Risks",
        "\n".join(f"- {risk}" for risk in risks(answer)),
        "## Revisit",
        REVISIT.format(date=(today + timedelta(days=REVISIT_DAYS)).isoformat()),
        "## Sources",
        "\n".join(f"- {source}" for source in answer.sources),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def risks(answer: Answer) -> list[str]:
    """What could make the decision wrong."""
    found = []
    time, memory, fleet = answer.time, answer.memory, answer.fleet
    if time and time.seconds_per_clip:
        found.append(
            f"A clip may take {seconds(time.low)} to {seconds(time.high)}; measure one before you commit."
        )
    if time and time.is_extrapolated:
        found.append("The catalog has no run on this GPU: the time is extrapolated from other GPUs.")
    if memory and memory.capacity_bytes:
        free = 1 - memory.peak_bytes / memory.capacity_bytes
        found.append(f"{free:.0%} of the device memory is free at the peak ({memory.peak_stage}).")
    if isinstance(fleet, VideoFleetAnswer) and fleet.size:
        found.append(f"p99 is {seconds(fleet.size.latency_p99)}; the fleet is sized for p95.")
    found.append("Prices are from the dates in the sources and change; spot prices change hourly.")
    return found


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
