"""`filmgate bench denoise`: forward passes of a full-size denoiser with random weights."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from filmgate.cli.bench import where
from filmgate.jobs import Size

if TYPE_CHECKING:
    from filmgate.pipeline.bench.denoise import Measured

Result = dict[str, Any]


def denoise(  # noqa: PLR0913, PLR0917 - one argument per flag of the contract
    model: Annotated[str, typer.Option(help="A full-size denoiser with random weights.")] = "wan2.1-1.3b",
    size: Annotated[str, typer.Option(help="WIDTHxHEIGHT, several with commas.")] = "832x480,1280x720",
    frames: Annotated[int, typer.Option(help="Length of the clip.")] = 81,
    rounds: Annotated[int, typer.Option(min=1, help="Timed passes after the first; the median counts.")] = 3,
    variants: Annotated[str, typer.Option(help="Comma-separated; all but `whole` if left out.")] = "",
    limit_seconds: Annotated[float, typer.Option(min=0, help="Start nothing new after this long.")] = 3600,
    backend: Annotated[str, typer.Option(help="What torch.compile hands its graphs to.")] = "inductor",
    out: Annotated[
        Path | None,
        typer.Option(help="Keep what is measured so far in this JSON file, should the run be cut off."),
    ] = None,
    show: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Print the table of such a file, measure nothing."),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """The denoiser's forward pass: eager, compiled, other attention, guidance as one batch, text encoder."""
    if show is not None:
        typer.echo(table(json.loads(show.read_text())))
        return
    started = time.monotonic()
    from filmgate.settings import load_settings

    settings = load_settings().pipeline
    from filmgate.pipeline.bench.denoise import Case, open_bench, plan

    sizes = [Size.parse(text) for text in size.split(",")]
    steps = plan(sizes, {name for name in variants.split(",") if name})
    running, about = open_bench(Case(model, frames, rounds, backend), sizes, settings)
    findings = Findings(about, out)
    for name, (width, height) in steps:
        label = f"{width}x{height}"
        if time.monotonic() - started > limit_seconds:
            findings.leave_out(label, name, f"not begun within {limit_seconds:g} s")
            continue
        try:
            findings.add(label, name, running.measure(name, (width, height)))
        except Exception as exc:  # noqa: BLE001 - one variant that fails must not cost the others
            findings.leave_out(label, name, f"{type(exc).__name__}: {str(exc).partition(chr(10))[0]}")
    typer.echo(json.dumps(findings.result()) if is_json else table(findings.result()))


@dataclass(slots=True)
class Findings:
    """What has been measured so far. Said on stderr and kept in `out` at once: a run may be cut off."""

    about: dict[str, object]
    out: Path | None
    measured: "dict[str, dict[str, Measured]]" = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, size: str, name: str, measured: "Measured") -> None:
        self.measured.setdefault(size, {})[name] = measured
        self._keep({f"{size} {name}": asdict(measured)})

    def leave_out(self, size: str, name: str, reason: str) -> None:
        self.left_out[f"{size} {name}"] = reason
        self._keep({f"{size} {name}": reason})

    def result(self) -> Result:
        results = {
            size: {name: asdict(m) for name, m in by_name.items()} for size, by_name in self.measured.items()
        }
        ratios = {size: _ratios(by_name) for size, by_name in results.items()}
        rest = {"results": results, "ratios": ratios, "left_out": self.left_out}
        return {"bench": "denoise", **self.about, **where(), **rest}

    def _keep(self, news: object) -> None:
        typer.echo(json.dumps(news), err=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.result(), indent=2) + "\n")


def _ratios(rows: dict[str, Result]) -> dict[str, float]:
    """Seconds over the seconds of what each variant stands against, in the same run."""
    baselines = dict.fromkeys(rows, "eager") | {"one_batch": "two_forwards", "text_cached": "text"}
    return {
        f"{name}_to_{base}": round(rows[name]["seconds"] / rows[base]["seconds"], 4)
        for name, base in baselines.items()
        if name in rows and base in rows and name != base and name not in ("float32", "text", "two_forwards")
    }


def table(result: Result) -> str:
    """The result as a Markdown table, ready for docs/denoiser.md."""
    about = "{model}, {frames} frames, {dtype}, {device}, torch {torch}, commit {commit}".format(**result)
    head = ("size", "variant", "seconds", "first pass", "TFLOP/s", "GPU GiB", "to eager", "to float32")
    lines = [about, "", _line(head), _line(["---"] * len(head))]
    for size, rows in result["results"].items():
        truth = rows.get("float32", {}).get("relative_differences", {})
        lines += [_line(_cells(result, size, name, truth)) for name in rows]
    lines.append("")
    for size, ratios in result["ratios"].items():
        lines += [f"{size} {name.replace('_', ' ')}: {ratio}" for name, ratio in ratios.items()]
    lines += [f"left out: {what}: {reason}" for what, reason in result["left_out"].items()]
    return "\n".join(lines)


def _cells(result: Result, size: str, name: str, truth: dict[str, float]) -> list[str]:
    row = result["results"][size][name]
    passes = {"two_forwards": 2, "one_batch": 2, "text": 0, "text_cached": 0}.get(name, 1)
    rate = result["teraflop_per_pass"][size] * passes / row["seconds"]
    peak = row["peak_device_bytes"]
    away = row["relative_differences"].get("eager")
    return [
        size,
        name.replace("_", " "),
        f"{row['seconds']:.4f}",
        f"{row['first_seconds']:.2f}",
        f"{rate:.0f}" if passes and rate >= 1 else "-",
        f"{peak / 2**30:.2f}" if peak else "-",
        "-" if away is None or name == "float32" else f"{away:.2e}",
        f"{truth[name]:.2e}" if name in truth else "-",
    ]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
