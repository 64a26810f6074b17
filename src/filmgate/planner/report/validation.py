"""The validation as a Markdown page: every row, every outlier explained, what is not measured yet."""

from collections.abc import Sequence
from math import exp, expm1
from statistics import median

from filmgate.planner.report.numbers import seconds
from filmgate.planner.validation import Judged, Validation

ODD = 0.25
INTRODUCTION = """\
Made by `filmgate plan validate --docs docs/planner-validation.md` on {date}; no GPU is needed to make it.
Each row is predicted by constants fitted without that row. *Harder* leaves out every row of the same model
on the same GPU, whatever the number of GPUs. What no hold-out can show: the form of the formulas was chosen
with these tables in view."""


def to_proof(found: Validation) -> str:
    """The whole page."""
    parts = [
        "# Planner validation",
        INTRODUCTION.format(date=found.calibration.as_of),
        _summary(found),
        "## Published video runs, seconds a clip",
        _table(found.counted("video")),
        _uncounted(found, "video", "These are limits, not times, and are not counted:"),
        "## Our own runs on one H200, seconds a stage",
        _table(found.counted("measured")),
        _not_measured(found),
        "## Published language-model runs, seconds a token, request or first token",
        _table(found.counted("llm")),
        _uncounted(found, "llm", "Not comparable, and why:"),
        "## Peak memory, GiB, without the safety factor",
        _table(found.counted("memory"), is_time=False),
        _uncounted(found, "memory", "Not comparable, and why:"),
        "## Outliers",
        _outliers(found),
        "## Constants",
        _constants(found),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(found: Validation) -> str:
    def line(name: str, groups: tuple[str, ...]) -> str:
        rows = found.counted(*groups)
        worst = found.worst_single(*groups)
        middle = found.median_error(*groups)
        return f"| {name} | {len(rows)} | {middle:.1%} | {abs(worst.error):.1%} ({worst.id}) |"

    harder = [abs(row.harder / row.published - 1) for row in found.rows if row.harder]
    rows = [
        "| what | rows | median error | worst single-GPU row |",
        "|---|---|---|---|",
        line("published video runs", ("video",)),
        line("our own H200 runs", ("measured",)),
        line("language-model runs", ("llm",)),
        line("all times", ("video", "measured", "llm")),
        line("peak memory", ("memory",)),
    ]
    rows.append(f"| video and own runs, harder | {len(harder)} | {median(harder):.1%} | {max(harder):.1%} |")
    return "\n".join(rows)


def _table(rows: Sequence[Judged], *, is_time: bool = True) -> str:
    if not rows:
        return "None yet."
    lines = [
        "| run | model | GPUs | published | predicted | error | harder | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        show = seconds if is_time else _gib
        harder = f"{row.harder / row.published - 1:+.1%}" if row.harder else ""
        lines.append(
            f"| {row.id} | {row.model} | {row.gpus} x {row.gpu or '-'} | {show(row.published)} "
            f"| {show(row.predicted)} | {row.error:+.1%} | {harder} | {row.source} |"
        )
    return "\n".join(lines)


def _gib(value: float) -> str:
    return f"{value:.2f}"


def _uncounted(found: Validation, group: str, title: str) -> str:
    rows = [row for row in found.rows if row.group == group and not row.is_counted]
    if not rows:
        return ""
    lines = [title, ""]
    for row in rows:
        beside = (
            f" Predicted {seconds(row.predicted)} against {seconds(row.published)}."
            if group == "video"
            else ""
        )
        lines.append(f"- `{row.id}` ({row.source}): {row.note}.{beside}")
    return "\n".join(lines)


def _not_measured(found: Validation) -> str:
    """Which of the runs asked of the benchmark script are still missing, and what is expected of them."""
    if not found.pending:
        return ""
    lines = [
        "Still to be measured by `benchmarks/gpu_planner_measurements.py`, and what the planner expects:",
        "",
    ]
    lines += [
        f"- {run.model} {run.shape} {run.stage}: not measured yet; predicted {seconds(run.predicted)}"
        for run in found.pending
    ]
    return "\n".join(lines)


def _outliers(found: Validation) -> str:
    rows = [
        row
        for row in found.rows
        if row.is_counted and abs(row.error) > (0.1 if row.group == "memory" else ODD)
    ]
    if not rows:
        return "None."
    return "\n".join(f"- `{row.id}` {row.error:+.0%}: {row.note or 'no reason known'}." for row in rows)


def _constants(found: Validation) -> str:
    video, llm = expm1(found.calibration.video_spread), expm1(found.calibration.llm_spread)
    interval = (
        f"The interval the planner prints: {video:.0%} for video, {llm:.0%} for language models either way; "
    )
    lines = [
        interval + "80 % of held-out rows fall inside.",
        "",
        "| constant | value |",
        "|---|---|",
    ]
    for name, value in found.calibration.constants.items():
        plain = name in ("gamma", "llm.overlap")
        lines.append(f"| {name} | {value if plain else exp(value):.3g} |")
    return "\n".join(lines)
