"""The answer as an architecture decision record in Markdown."""

from datetime import date, timedelta

from filmgate.planner.answer import Answer
from filmgate.planner.report.numbers import seconds
from filmgate.planner.report.tables import Table, tables

REVISIT_DAYS = 90
REVISIT = (
    "On {date}, or when volume doubles, a price moves by a tenth, or a measured clip leaves the interval."
)


def to_record(answer: Answer, today: date) -> str:
    """Context, options, decision, consequences, risks and a revisit date."""
    found = {table.title: table for table in tables(answer)}
    options = [
        found.pop(title)
        for title in ("What fits, best first", "What does not, and the number that says so")
        if title in found
    ]
    parts = [
        f"# Capacity decision: {answer.question}",
        f"Status: proposed. Date: {today.isoformat()}.",
        "## Context",
        f"The question: {answer.question}.",
        "\n".join(f"- Assumed: {text}." for text in answer.assumptions),
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
    """What could make the decision wrong, by what the answer itself says."""
    found = []
    time = answer.time
    if time and time.seconds_per_clip:
        found.append(
            f"A clip may take {seconds(time.low)} to {seconds(time.high)}; measure one before committing."
        )
    if time and time.is_extrapolated:
        found.append("No run on this GPU is in the catalog: the time is extrapolated from its relatives.")
    if answer.memory and answer.memory.capacity_bytes:
        room = 1 - answer.memory.peak_bytes / answer.memory.capacity_bytes
        found.append(f"{room:.0%} of the device memory is free at the peak ({answer.memory.peak_stage}).")
    if answer.fleet and answer.fleet.get("latency_p99") is not None:
        found.append(
            f"p99 is {seconds(float(str(answer.fleet['latency_p99'])))}; the fleet is sized for p95."
        )
    found.append("Prices are of the date in the sources and move; spot moves hourly.")
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
