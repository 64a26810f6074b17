"""Options that several questions share. Only names and types: `filmgate --help` must answer in a blink."""

from pathlib import Path
from typing import Annotated

import typer

from filmgate.planner.fleet.traffic import Shape

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Adr = Annotated[Path | None, typer.Option("--adr", help="Write an architecture decision record (Markdown).")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a self-contained report page.")]
Region = Annotated[str | None, typer.Option("--region", help="AWS region; default from settings.")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="A bare GPU instead of an instance, e.g. H100.")]
GpuNames = Annotated[str | None, typer.Option("--gpu", help="Bare GPUs such as H100, by commas.")]
InstanceName = Annotated[str | None, typer.Option("--instance", help="An instance, e.g. g7e.2xlarge.")]
Instances = Annotated[
    str | None, typer.Option("--instances", help="Instances, or GPUs such as H100, by commas.")
]
UserFile = Annotated[
    Path | None, typer.Option("--catalog", help="TOML with your own GPUs, instances, prices and models.")
]
PriceFile = Annotated[Path | None, typer.Option("--prices", help="CSV written by `filmgate plan prices`.")]
VideoModelName = Annotated[
    str, typer.Option("--model", help="A model of the catalog, or a diffusers folder.")
]
LlmName = Annotated[
    str, typer.Option("--model", help="A model of the catalog, or a Hugging Face config.json.")
]
AnyModelName = Annotated[str, typer.Option("--model", help="A video model or a language model.")]
Size = Annotated[str | None, typer.Option("--size", help="WIDTHxHEIGHT, e.g. 1280x720.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Length of the clip.")]
Frames = Annotated[int | None, typer.Option("--frames", help="Length in frames, instead of --seconds.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Denoising steps.")]
Fps = Annotated[float | None, typer.Option("--fps", help="Frames a second.")]
ClipsPerDay = Annotated[float | None, typer.Option("--clips-per-day", help="Volume.")]
SloSeconds = Annotated[float | None, typer.Option("--slo-seconds", help="p95 from request to clip.")]
TrafficShape = Annotated[Shape, typer.Option("--traffic", help="When work arrives.")]
Compiled = Annotated[bool, typer.Option("--compiled", help="Operators fused by torch.compile.")]
Tenants = Annotated[int, typer.Option("--tenants", min=1, help="Tenants to keep apart.")]
Adapters = Annotated[int, typer.Option("--adapters", min=1, help="Adapters on one base model.")]
Discount = Annotated[float | None, typer.Option("--commit-discount", help="Share off for a commitment.")]
Interruptible = Annotated[float, typer.Option("--interruptible", help="Share of the work fit for spot.")]
SafetyFactor = Annotated[float, typer.Option("--safety-factor", help="On memory that is estimated.")]
Residency = Annotated[str | None, typer.Option("--residency", help="Data must stay in: EU, US, UK ...")]
Precision = Annotated[
    str | None, typer.Option("--precision", help="Weights: bf16, fp8, int4 ...; default: as released.")
]
KvPrecision = Annotated[str, typer.Option("--kv-precision", help="KV cache: bf16 or fp8.")]
Context = Annotated[int, typer.Option("--context", help="Tokens a sequence, prompt and answer.")]
AnswerTokens = Annotated[int, typer.Option("--answer-tokens", help="Of them, the answer.")]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", help="Sequences at once; with arrivals, the most a replica takes.  [default: 1; 256]"
    ),
]
RequestsPerDay = Annotated[float | None, typer.Option("--requests-per-day", help="Volume.")]
RequestsPerSecond = Annotated[
    float | None, typer.Option("--requests-per-second", help="Volume, on average over the day.")
]
TtftMs = Annotated[float | None, typer.Option("--ttft-ms", help="Longest time to first token.")]
TbtMs = Annotated[float | None, typer.Option("--tbt-ms", help="Longest time between tokens.")]
MetricsFile = Annotated[
    Path, typer.Option("--utilisation", help="CSV: gpu_util, memory_used_mib, or DCGM names.")
]
