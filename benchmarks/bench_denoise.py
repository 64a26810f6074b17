"""One forward pass of a full-size denoiser with random weights: eager, compiled, other attention, one batch.

The results so far go to stderr and to `--out` after every variant, because a run may be interrupted.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.denoise_variants import Case, Measured, open_bench, plan
from benchmarks.report import JsonFlag, make_report, run
from filmgate.jobs import Size
from filmgate.settings import load_settings

Report = dict[str, Any]


def main(  # noqa: PLR0913, PLR0917 - one argument per flag
    model: Annotated[str, typer.Option(help="A full-size denoiser with random weights.")] = "wan2.1-1.3b",
    size: Annotated[str, typer.Option(help="Comma-separated WIDTHxHEIGHT.")] = "832x480,1280x720",
    frames: Annotated[int, typer.Option(help="Length of the clip.")] = 81,
    rounds: Annotated[
        int, typer.Option(min=1, help="Timed passes after the first; the median is reported.")
    ] = 3,
    variants: Annotated[str, typer.Option(help="Comma-separated. Default: all except `whole`.")] = "",
    limit_seconds: Annotated[
        float, typer.Option(min=0, help="Start no new variant after this many seconds.")
    ] = 3600,
    backend: Annotated[str, typer.Option(help="The torch.compile backend.")] = "inductor",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the results to this JSON file after every variant."),
    ] = None,
    show: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Print the table of such a file and measure nothing."),
    ] = None,
    is_json: JsonFlag = False,
) -> None:
    """Measure the forward pass of a denoiser and print a Markdown table, or JSON."""
    if show is not None:
        typer.echo(table(json.loads(show.read_text())))
        return
    started = time.monotonic()
    sizes = [Size.parse(text) for text in size.split(",")]
    steps = plan(sizes, {name for name in variants.split(",") if name})
    running, about = open_bench(Case(model, frames, rounds, backend), sizes, load_settings().pipeline)
    results = Results(about, out)
    for name, (width, height) in steps:
        label = f"{width}x{height}"
        if time.monotonic() - started > limit_seconds:
            results.skip(label, name, f"not started within {limit_seconds:g} s")
            continue
        try:
            results.add(label, name, running.measure(name, (width, height)))
        except Exception as exc:  # noqa: BLE001 - a variant that fails does not stop the others
            results.skip(label, name, f"{type(exc).__name__}: {str(exc).partition(chr(10))[0]}")
    typer.echo(json.dumps(results.report()) if is_json else table(results.report()))


@dataclass(slots=True)
class Results:
    """The results so far."""

    settings: dict[str, object]
    out: Path | None
    measured: dict[str, dict[str, Measured]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, size: str, name: str, measured: Measured) -> None:
        self.measured.setdefault(size, {})[name] = measured
        self._save({f"{size} {name}": asdict(measured)})

    def skip(self, size: str, name: str, reason: str) -> None:
        self.skipped[f"{size} {name}"] = reason
        self._save({f"{size} {name}": reason})

    def report(self) -> Report:
        results = {
            size: {name: asdict(m) for name, m in by_name.items()} for size, by_name in self.measured.items()
        }
        ratios = {size: _ratios(by_name) for size, by_name in results.items()}
        return make_report("denoise", self.settings, results, ratios) | {"skipped": self.skipped}

    def _save(self, result: object) -> None:
        typer.echo(json.dumps(result), err=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.report(), indent=2) + "\n")


def _ratios(rows: dict[str, Report]) -> dict[str, float]:
    """The seconds of each variant divided by those of its baseline in the same run."""
    baselines = dict.fromkeys(rows, "eager") | {"one_batch": "two_forwards", "text_cached": "text"}
    return {
        f"{name}_to_{base}": round(rows[name]["seconds"] / rows[base]["seconds"], 4)
        for name, base in baselines.items()
        if name in rows and base in rows and name != base and name not in ("float32", "text", "two_forwards")
    }


def table(report: Report) -> str:
    """The report as the Markdown table of docs/denoiser.md."""
    about = "{model}, {frames} frames, {dtype}, {device}, torch {torch}, commit {commit}".format(
        **report["settings"], commit=report["commit"]
    )
    head = (
        "size",
        "variant",
        "seconds",
        "queued",
        "first pass",
        "TFLOP/s",
        "GPU GiB",
        "to eager",
        "to float32",
    )
    lines = [about, "", _line(head), _line(["---"] * len(head))]
    for size, rows in report["results"].items():
        exact = rows.get("float32", {}).get("relative_differences", {})
        lines += [_line(_cells(report, size, name, exact)) for name in rows]
    lines.append("")
    for size, ratios in report["ratios"].items():
        lines += [f"{size} {name.replace('_', ' ')}: {ratio}" for name, ratio in ratios.items()]
    lines += [f"skipped: {what}: {reason}" for what, reason in report["skipped"].items()]
    return "\n".join(lines)


def _cells(report: Report, size: str, name: str, exact: dict[str, float]) -> list[str]:
    row = report["results"][size][name]
    passes = {"two_forwards": 2, "one_batch": 2, "text": 0, "text_cached": 0}.get(name, 1)
    rate = report["settings"]["teraflop_per_pass"][size] * passes / row["seconds"]
    peak, queued = row["peak_device_bytes"], row.get("queued_seconds")
    difference = row["relative_differences"].get("eager")
    return [
        size,
        name.replace("_", " "),
        f"{row['seconds']:.4f}",
        f"{queued:.4f}" if queued else "-",
        f"{row['first_seconds']:.2f}",
        f"{rate:.0f}" if passes and rate >= 1 else "-",
        f"{peak / 2**30:.2f}" if peak else "-",
        "-" if difference is None or name == "float32" else f"{difference:.2e}",
        f"{exact[name]:.2e}" if name in exact else "-",
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    run(main)
