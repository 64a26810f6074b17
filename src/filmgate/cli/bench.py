"""`filmgate bench`: measures this machine and reports ratios within one run."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.bench_service import bench_service, require_writable
from filmgate.cli.options import AsJson
from filmgate.errors import UsageError
from filmgate.pipeline.bench.provenance import provenance

if TYPE_CHECKING:
    from filmgate.pipeline.bench.decode import Measured, Pair

bench = typer.Typer(
    help="Measure this machine. Compare the ratios within one run, not the seconds.", no_args_is_help=True
)


bench.command("service")(bench_service)


@bench.command("decode")
def decode(  # noqa: PLR0913, PLR0917 - one argument per flag of the contract
    vae: Annotated[str, typer.Option(help="VAE to build at full size, with random weights.")] = "wan2.1",
    model: Annotated[
        str | None, typer.Option(help="Use real weights instead: a diffusers folder or hub id.")
    ] = None,
    size: Annotated[str, typer.Option(help="Size in pixels.")] = "1280x720",
    frames: Annotated[int, typer.Option(min=1, help="Number of frames.")] = 81,
    rounds: Annotated[
        int,
        typer.Option(
            min=1, help="Timed runs after a warm-up; the median is reported. 1 measures memory only."
        ),
    ] = 3,
    variants: Annotated[str, typer.Option(help="Variants to measure, comma-separated.  [default: all]")] = "",
    timeline: Annotated[Path | None, typer.Option(help="Draw both loops into this SVG file.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the results to this JSON file after every variant."),
    ] = None,
    is_json: AsJson = False,
) -> None:
    """Measure decoding from latents to MP4: typical diffusers code, plain, overlapped, the decoder only."""
    from filmgate.settings import load_settings

    settings = load_settings().pipeline
    from filmgate.pipeline.bench.decode import LOOPS, VARIANTS, open_bench
    from filmgate.pipeline.bench.vaes import VAES

    named = {name for name in variants.split(",") if name}
    if unknown := named - set(VARIANTS):
        message = f"there is no variant {min(unknown)}; use some of {', '.join(VARIANTS)}"
        raise UsageError(message, option="--variants")
    if model is None and vae not in VAES:
        raise UsageError(f"there is no VAE {vae!r}; use one of {', '.join(VAES)}", option="--vae")
    for option, path in (("--timeline", timeline), ("--output", out)):
        require_writable(path, option)
    running, about = open_bench(model or vae, size, frames, rounds, settings)
    chosen = named or set(running.variants)
    results = Results(about, out)
    for name in (name for name in VARIANTS if name in chosen):
        results.add(name, running.measure(name))
        if name == LOOPS[-1] and (timeline or set(LOOPS) <= chosen):
            results.add_pair(running.pair(), timeline)
    if timeline and LOOPS[-1] not in chosen:
        results.add_pair(running.pair(), timeline)
    if not named:
        results.add_luma_difference(running.luma_difference())
    typer.echo(json.dumps(results.result()) if is_json else table(results.result()))


@dataclass(slots=True)
class Results:
    """The results so far. Each one goes to stderr and to `out` at once, because a run may be interrupted."""

    about: dict[str, object]
    out: Path | None
    measured: "dict[str, Measured]" = field(default_factory=dict)
    agreement: dict[str, object] = field(default_factory=dict)

    def add(self, name: str, measured: "Measured") -> None:
        self.measured[name] = measured
        self._save({name: asdict(measured)})

    def add_pair(self, pair: "Pair", timeline: Path | None) -> None:
        self.agreement["is_plain_equal_to_overlapped"] = pair.is_equal
        if timeline is not None:
            timeline.write_text(draw(pair, self.about))
        self._save(self.agreement)

    def add_luma_difference(self, difference: float) -> None:
        self.agreement["mean_luma_difference_to_diffusers"] = difference
        self._save(self.agreement)

    def result(self) -> dict[str, object]:
        figures = report(self.measured, self.about)
        return {
            "bench": "decode",
            **self.about,
            **provenance(),
            **figures,
            "agreement": self.agreement or None,
        }

    def _save(self, result: object) -> None:
        typer.echo(json.dumps(result), err=True)
        if self.out is not None:
            self.out.write_text(json.dumps(self.result(), indent=2) + "\n")


def report(measured: "dict[str, Measured]", about: dict[str, object]) -> dict[str, object]:
    """Seconds and ratios, ready for JSON."""
    pixels = int(str(about["frames"])) * int(str(about["width"])) * int(str(about["height"]))
    results = {
        name: asdict(m)
        | {"bytes_copied_per_pixel": round(m.gpu.bytes_to_host / pixels, 4) if m.gpu else None}
        for name, m in measured.items()
    }
    overlapped = measured.get("overlapped")
    ratios = {
        f"overlapped_to_{name}": round(overlapped.seconds / m.seconds, 4)
        for name, m in measured.items()
        if overlapped is not None and name != "overlapped"
    }
    if overlapped is not None and overlapped.first_fragment_seconds is not None:
        ratios["first_fragment_to_overlapped"] = round(
            overlapped.first_fragment_seconds / overlapped.seconds, 4
        )
    return {"results": results, "ratios": ratios}


def draw(pair: "Pair", about: dict[str, object]) -> str:
    """Both loops as one SVG."""
    from filmgate.pipeline.bench.drawing import draw_timeline

    loops = {"one after the other": pair.spans["plain"], "overlapped": pair.spans["overlapped"]}
    return draw_timeline(loops, "{vae}, {width}x{height}, {frames} frames, {device}".format(**about))


def table(result: "dict[str, object]") -> str:
    """The result as a table."""
    results, ratios, agreement = result["results"], result["ratios"], result["agreement"] or {}
    assert isinstance(results, dict)
    assert isinstance(ratios, dict)
    assert isinstance(agreement, dict)
    about = ("vae", "width", "height", "frames", "device")
    lines = ["  ".join(f"{name} {result[name]}" for name in about)]
    lines.append(f"{'variant':<14}{'seconds':>9}{'kernels':>10}{'GPU GiB':>9}{'host GiB':>10}{'B/pixel':>9}")
    for name, row in results.items():
        gpu = row["gpu"]
        busy = f"{gpu['kernel_utilisation']:.1%}" if gpu else "-"
        peak = f"{row['peak_device_bytes'] / 2**30:.2f}" if row["peak_device_bytes"] else "-"
        copied = row["bytes_copied_per_pixel"]
        lines.append(
            f"{name:<14}{row['seconds']:>9.3f}{busy:>10}{peak:>9}{row['peak_host_bytes'] / 2**30:>10.2f}"
            f"{'-' if copied is None else f'{copied:.2f}':>9}"
        )
        if row["phases"]:
            lines.append("  " + ", ".join(f"{n.split('_')[0]} {s:.3f} s" for n, s in row["phases"].items()))
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in ratios.items()]
    lines += [f"{name.replace('_', ' ')}: {value}" for name, value in agreement.items()]
    return "\n".join(lines)
