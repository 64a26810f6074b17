"""Writes docs/metrics.md from the list of metrics: `make docs`."""

import sys
from dataclasses import asdict
from pathlib import Path

from filmgate.telemetry.metrics import METRICS, Metric, Source

_INTRODUCTION = """\
# Metrics

Servers and workers export Prometheus metrics on their [management port](operate/monitor.md#management-port).
`make docs` writes this page from `src/filmgate/telemetry/metrics.py`.

| label | values |
|---|---|
| `model` | the name that clients use |
| `version` | the first 12 digits of the SHA-256 of the weights; at a provider, the provider's model |
| `route` | `gpu`: your GPUs; `managed`: a provider |
| `tenant` | the tenant; empty in histograms if there are more than `management.max_tenants` tenants |
| `gpu` | the UUID of the GPU: DCGM's label `UUID` |

Job metrics are counted in the database, in the transactions that cause them
([ADR 14](adr/0014-job-metrics-are-in-the-database.md)): every replica reports the whole service. Take the
maximum over replicas, never the sum: `max without (instance, pod) (...)`. Worker metrics belong to one
process: sum them. The histograms of a version are deleted after 100 days without an observation.
"""

_DCGM = """
## GPU metrics and DCGM

A worker reads its GPU through NVML, so a machine needs no DCGM exporter. Where one runs, both report the
same values under these names. `deploy/dcgm-counters.csv` is a counters file for the exporter
(`dcgm-exporter -f`) with every field of this table. In the file that the exporter comes with, the ECC
counters are commented out and the clock events are missing. `filmgate slo rules --gpu-metrics dcgm` prints
the alerts on GPUs with the exporter's names.

| Filmgate | DCGM exporter |
|---|---|
"""


def to_markdown() -> str:
    """The whole page."""
    tables = [_to_table(source) for source in Source]
    fields = "".join(f"| `{metric.name}` | {_code(metric.dcgm)} |\n" for metric in METRICS if metric.dcgm)
    return "\n".join((_INTRODUCTION, *tables)) + _DCGM + fields


def describe_metrics() -> list[dict[str, object]]:
    """Every metric as JSON, for the page of a server."""
    return [asdict(metric) for metric in METRICS]


def _to_table(source: Source) -> str:
    rows = "".join(_to_row(metric) for metric in METRICS if metric.source is source)
    title = source.value[0].upper() + source.value[1:]
    return f"## {title}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n{rows}"


def _to_row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |\n"


def _code(field: str) -> str:
    name, _, unit = field.partition(" ")
    return f"`{name}` {unit}".rstrip()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(to_markdown())
