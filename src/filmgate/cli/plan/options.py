"""Options of the plan commands. Imports only names and types, to keep `filmgate --help` fast."""

from pathlib import Path
from typing import Annotated

import typer

from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape

Adr = Annotated[
    Path | None, typer.Option("--adr", help="Write an architecture decision record (Markdown) to this file.")
]
Html = Annotated[Path | None, typer.Option("--html", help="Write a self-contained HTML page to this file.")]
Region = Annotated[str | None, typer.Option("--region", help="AWS region.  [default: planner.region]")]
GpuName = Annotated[str | None, typer.Option("--gpu", help="A bare GPU instead of an instance, e.g. H100.")]
GpuNames = Annotated[str | None, typer.Option("--gpu", help="Bare GPUs, comma-separated, e.g. H100,H200.")]
InstanceName = Annotated[str | None, typer.Option("--instance", help="An instance type, e.g. g7e.2xlarge.")]
Instances = Annotated[
    str | None, typer.Option("--instances", help="Instance types or GPUs to compare, comma-separated.")
]
UserFile = Annotated[
    Path | None, typer.Option("--catalog", help="TOML file with your own GPUs, instances, prices and models.")
]
PriceFile = Annotated[
    Path | None, typer.Option("--prices", help="CSV file written by `filmgate plan prices --refresh`.")
]
VideoModelName = Annotated[str, typer.Option("--model", help="A catalog model, or a diffusers folder.")]
LlmName = Annotated[str, typer.Option("--model", help="A catalog model, or a Hugging Face config.json.")]
AnyModelName = Annotated[str, typer.Option("--model", help="A video model or a language model.")]
Size = Annotated[str | None, typer.Option("--size", help="Size in pixels, e.g. 1280x720.")]
Seconds = Annotated[float | None, typer.Option("--seconds", help="Length of the clip in seconds.")]
Frames = Annotated[int | None, typer.Option("--frames", help="Length in frames, instead of --seconds.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Denoising steps.")]
Quality = Annotated[
    str, typer.Option("--quality", help="Quality level of the clips: full, balanced or draft.")
]
Fps = Annotated[float | None, typer.Option("--fps", help="Frames per second.")]
ClipsPerDay = Annotated[float | None, typer.Option("--clips-per-day", help="Number of clips per day.")]
SloSeconds = Annotated[
    float | None, typer.Option("--slo-seconds", help="Maximum p95 latency from request to clip.")
]
Traffic = Annotated[
    TrafficShape | None,
    typer.Option("--traffic", help="How arrivals are distributed over the day.  [default: steady]"),
]
Compiled = Annotated[
    bool | None,
    typer.Option("--compiled/--no-compiled", help="torch.compile.  [default: what a worker does]"),
]
Flash = Annotated[bool, typer.Option("--flash", help="Workers have flash-attn-4 (extra `flash`).")]
Adapters = Annotated[
    int, typer.Option("--adapters", min=1, help="Number of LoRA adapters: variants of the model.")
]
Tenants = Annotated[int, typer.Option("--tenants", min=1, help="Number of tenants.")]
TenantHardware = Annotated[
    Tenancy,
    typer.Option(
        "--isolation",
        help="How to separate tenants: shared GPUs, one GPU per tenant (gpu) or one instance per tenant.",
    ),
]
SpareMachines = Annotated[
    int, typer.Option("--spare-machines", min=0, help="Machines that may be lost without missing the SLO.")
]
ArrivalsFile = Annotated[
    Path | None,
    typer.Option("--arrivals", help="CSV file with one arrival per line: seconds or ISO 8601 times."),
]
Discount = Annotated[
    float | None,
    typer.Option("--commit-discount", help="Savings Plan discount, if the catalog has no rate, e.g. 0.3."),
]
CommitYears = Annotated[int, typer.Option("--commit-years", help="Term of the Savings Plan: 1 or 3.")]
Interruptible = Annotated[
    float, typer.Option("--interruptible", help="Share of the machines that may be spot instances.")
]
Interruptions = Annotated[
    float, typer.Option("--interruptions-per-day", help="Expected spot interruptions per machine per day.")
]
SafetyFactor = Annotated[
    float, typer.Option("--safety-factor", help="Multiply estimated memory by this factor.")
]
BudgetMargin = Annotated[
    float,
    typer.Option(
        "--budget-margin", help="Multiply the whole memory budget, including weights, by this factor."
    ),
]
CachedTokens = Annotated[
    int, typer.Option("--cached-tokens", min=0, help="Tokens of each prompt that the prefix cache holds.")
]
Residency = Annotated[
    str | None,
    typer.Option("--residency", help="Jurisdiction or law that the data must stay in: EU, GDPR, LGPD ..."),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="Precision of the weights: bf16, int8, fp8, int4 ...  [default: bf16, or as released]",
    ),
]
KvPrecision = Annotated[str, typer.Option("--kv-precision", help="Precision of the KV cache: bf16 or fp8.")]
Context = Annotated[int, typer.Option("--context", help="Tokens per sequence, prompt and answer together.")]
AnswerTokens = Annotated[int, typer.Option("--answer-tokens", help="Tokens of the answer.")]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        help="Sequences at once; with a request rate, the maximum per replica.  [default: 1, or 256]",
    ),
]
RequestsPerDay = Annotated[
    float | None, typer.Option("--requests-per-day", help="Number of requests per day.")
]
RequestsPerSecond = Annotated[
    float | None, typer.Option("--requests-per-second", help="Requests per second, averaged over the day.")
]
TtftMs = Annotated[
    float | None, typer.Option("--ttft-ms", help="Maximum p95 time to the first token, in milliseconds.")
]
TbtMs = Annotated[
    float | None, typer.Option("--tbt-ms", help="Maximum mean time between tokens, in milliseconds.")
]
MetricsFile = Annotated[
    Path | None,
    typer.Option("--metrics-file", help="CSV file with gpu_util and memory_used_mib, or their DCGM names."),
]
MetricsPrometheus = Annotated[
    str | None,
    typer.Option("--prometheus", help="URL of a Prometheus server with Filmgate or DCGM GPU metrics."),
]
Selector = Annotated[
    str, typer.Option("--selector", help="Prometheus labels of the GPUs, e.g. '{instance=\"gpu-1\"}'.")
]
MetricsCloudWatch = Annotated[
    str | None, typer.Option("--cloudwatch", help="sagemaker:ENDPOINT/VARIANT or ec2:INSTANCE_ID.")
]
CloudWatchUrl = Annotated[str, typer.Option("--cloudwatch-url", hidden=True)]
Days = Annotated[int, typer.Option("--days", min=1, max=63, help="Days of metrics to read.")]
