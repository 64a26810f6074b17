"""Grafana dashboards from code: service, model, GPU, tenant and cost, with the same metrics as the alerts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from filmgate.slo.recording import (
    BURN_RATE,
    LATE_RATIO,
    burn_rate,
    late_ratio,
    percentile,
    rate_by,
    sum_by,
    waiting,
)
from filmgate.telemetry import metrics as m

SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 12, 8, 2
Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: PromQL by legend, and the unit of its axis."""

    title: str
    queries: Mapping[str, str]
    unit: str = "short"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels. `variable` filters all of them by a label: (label, metric that has it)."""

    name: str
    title: str
    panels: Sequence[Panel]
    variable: tuple[str, str] | None = None


def _quantiles(by: str, match: str) -> dict[str, str]:
    return {
        f"p{quantile * 100:g} {{{{{by}}}}}": percentile(m.JOB_SECONDS, quantile, by, match=match)
        for quantile in (0.5, 0.95, 0.99)
    }


def _summed(metric: m.Metric, *labels: str, match: str = "") -> str:
    """A gauge of the database, summed by these labels."""
    return sum_by(metric, labels, f"{metric.name}{{{match}}}")


def _mean(metric: m.Metric, label: str, function: str, window: str) -> str:
    """The mean of a histogram of the database by this label, of the models that are shown."""
    total, count = (
        sum_by(metric, [label], f"{function}({metric.name}_{part}{{{_MODEL}}}[{window}])")
        for part in ("sum", "count")
    )
    return f"{total} / {count}"


def _gauge(metric: m.Metric, *labels: str, match: str = "") -> str:
    return f"max by ({', '.join(labels)}) ({metric.name}{{{match}}})"


_MODEL = 'model=~"$model"'

MODEL = Dashboard(
    "filmgate-model",
    "Filmgate: models",
    (
        Panel(
            "Completed clips per second, by version",
            {
                "{{model}} {{version}}": rate_by(
                    m.JOBS_ENDED, "model", "version", match=f'{_MODEL},state="completed"'
                )
            },
        ),
        Panel(
            "Failed jobs per second, by version and reason",
            {
                "{{version}} {{reason}}": rate_by(
                    m.JOBS_ENDED, "version", "reason", match=f'{_MODEL},state="failed"'
                )
            },
        ),
        Panel("Acceptance to completion, by version", _quantiles("version", _MODEL), "s"),
        Panel("Acceptance to completion, by route", _quantiles("route", _MODEL), "s"),
        Panel(
            "Mean seconds per stage",
            {"{{stage}}": _mean(m.STAGE_SECONDS, "stage", "rate", "1h")},
            "s",
        ),
        Panel(
            "Out of memory per second",
            {"{{model}}": f"sum by (model) (rate({m.OUT_OF_MEMORY.name}{{{_MODEL}}}[5m]))"},
        ),
        Panel(
            "Mean seconds to load and to start",
            {
                "load {{model}}": _mean(m.MODEL_LOAD_SECONDS, "model", "increase", "1d"),
                "cold start {{model}}": _mean(m.COLD_START_SECONDS, "model", "increase", "1d"),
            },
            "s",
        ),
        Panel(
            "Canary clips",
            {"{{result}}": f"sum by (result) (increase({m.CANARY_RUNS.name}{{{_MODEL}}}[1h]))"},
        ),
    ),
    variable=("model", m.JOBS_ENDED.name),
)


_THROTTLES = f"sum by (service) (rate({m.THROTTLES.name}[5m]))"
SERVICE = Dashboard(
    "filmgate-service",
    "Filmgate: service",
    (
        Panel("Late jobs in an hour", {"{{class}}": LATE_RATIO}, "percentunit"),
        Panel(
            "Burn rate of the error budget",
            {f"{window} {{{{class}}}}": BURN_RATE.format(window) for window in ("5m", "1h", "6h", "3d")},
        ),
        Panel("Acceptance to completion, by route", _quantiles("route", ""), "s"),
        Panel("95 % of jobs start within", {"{{model}}": percentile(m.WAIT_SECONDS, 0.95, "model")}, "s"),
        Panel("Waiting jobs", {"{{model}}": waiting("model")}),
        Panel(
            "Backlog and promise",
            {
                "{{model}}": _summed(m.BACKLOG_SECONDS, "model", match='route="gpu"'),
                "promise": f"max({m.PROMISE_SECONDS.name})",
            },
            "s",
        ),
        Panel("Live workers", {"{{route}} {{model}}": _gauge(m.WORKERS, "route", "model")}),
        Panel("Ended jobs per second", {"{{state}} {{reason}}": rate_by(m.JOBS_ENDED, "state", "reason")}),
        Panel(
            "Routing decisions per second",
            {"{{route}} {{reason}}": rate_by(m.JOBS_ROUTED, "route", "reason")},
        ),
        Panel("Breaker open", {"{{provider}}": _gauge(m.BREAKER_PHASE, "provider", match='phase="open"')}),
        Panel("Throttled calls per second", {"{{service}}": _THROTTLES}),
        Panel(
            "HTTP responses per second", {"{{status}}": f"sum by (status) (rate({m.HTTP_REQUESTS.name}[5m]))"}
        ),
    ),
)


_GPU, _BY = 'gpu=~"$gpu"', ("instance", "gpu")
_LEGEND = "{{instance}} {{gpu}}"


def _one(title: str, metric: m.Metric, unit: str) -> Panel:
    return Panel(title, {_LEGEND: _gauge(metric, *_BY, match=_GPU)}, unit)


_MEMORY = f"{_gauge(m.GPU_MEMORY_USED, *_BY, match=_GPU)} / {_gauge(m.GPU_MEMORY_TOTAL, *_BY, match=_GPU)}"
GPU = Dashboard(
    "filmgate-gpu",
    "Filmgate: GPUs",
    (
        _one("Busy", m.GPU_UTILIZATION, "percentunit"),
        Panel("Memory used", {_LEGEND: _MEMORY}, "percentunit"),
        _one("Temperature", m.GPU_TEMPERATURE, "celsius"),
        Panel(
            "Power and its limit",
            {
                _LEGEND: _gauge(m.GPU_POWER, *_BY, match=_GPU),
                "limit {{gpu}}": _gauge(m.GPU_POWER_LIMIT, *_BY, match=_GPU),
            },
            "watt",
        ),
        _one("Clock of the multiprocessors", m.GPU_SM_CLOCK, "hertz"),
        Panel(
            "Reasons for slow clocks",
            {"{{gpu}} {{reason}}": _gauge(m.GPU_CLOCK_EVENT, "gpu", "reason", match=_GPU)},
        ),
        Panel("Memory errors", {"{{gpu}} {{kind}}": _gauge(m.GPU_ECC_ERRORS, "gpu", "kind", match=_GPU)}),
        Panel(
            "XID errors in an hour",
            {"{{gpu}} {{xid}}": f"sum by (gpu, xid) (increase({m.GPU_XID_ERRORS.name}{{{_GPU}}}[1h]))"},
        ),
        Panel(
            "Idle between clips, 95 %",
            {
                "{{instance}}": "histogram_quantile(0.95, sum by (le, instance) "
                f"(rate({m.WORKER_GAP_SECONDS.name}_bucket[1h])))"
            },
            "s",
        ),
        Panel(
            "Row remapping",
            {
                "{{gpu}} {{cause}}": _gauge(m.GPU_REMAPPED_ROWS, "gpu", "cause", match=_GPU),
                "failed {{gpu}}": _gauge(m.GPU_REMAP_FAILURE, "gpu", match=_GPU),
            },
        ),
    ),
    variable=("gpu", m.GPU_UP.name),
)


_TENANT = 'tenant=~"$tenant"'
_OF_TENANT = f"{_TENANT},"
TENANT = Dashboard(
    "filmgate-tenant",
    "Filmgate: tenants",
    (
        Panel(
            "Late jobs in an hour",
            {"{{tenant}}": late_ratio("1h", "tenant", match=_OF_TENANT)},
            "percentunit",
        ),
        Panel(
            "Burn rate of the error budget",
            {
                f"{window} {{{{tenant}}}} {{{{class}}}}": burn_rate(
                    window, "tenant", "class", match=_OF_TENANT
                )
                for window in ("1h", "6h", "3d")
            },
        ),
        Panel(
            "Queued and running jobs",
            {"{{tenant}} {{state}}": _summed(m.JOBS, "tenant", "state", match=_TENANT)},
        ),
        Panel(
            "Completed clips per second",
            {"{{tenant}}": rate_by(m.JOBS_ENDED, "tenant", match=f'{_TENANT},state="completed"')},
        ),
        Panel("GPU-seconds per second", {"{{tenant}}": rate_by(m.GPU_SECONDS, "tenant", match=_TENANT)}),
        Panel("Acceptance to completion", _quantiles("tenant", _TENANT), "s"),
        Panel(
            "USD per hour",
            {"{{tenant}}": f"3600 * {rate_by(m.COST_USD, 'tenant', match=_TENANT)}"},
            "currencyUSD",
        ),
    ),
    variable=("tenant", m.JOBS_ENDED.name),
)


def _usd_per_day(label: str) -> str:
    return sum_by(m.COST_USD, [label], f"increase({m.COST_USD.name}[1d])")


COST = Dashboard(
    "filmgate-cost",
    "Filmgate: cost",
    (
        Panel(
            "USD per hour, by model and route",
            {"{{model}} {{route}}": f"3600 * {rate_by(m.COST_USD, 'model', 'route')}"},
            "currencyUSD",
        ),
        Panel(
            "USD per 1,000 clips",
            {"{{model}} {{route}}": _gauge(m.COST_USD_PER_1000_CLIPS, "model", "route")},
            "currencyUSD",
        ),
        Panel("USD in a day, by model", {"{{model}}": _usd_per_day("model")}, "currencyUSD"),
        Panel(
            "USD in a day, by tenant",
            {"{{tenant}}": f"topk(10, {_usd_per_day('tenant')})"},
            "currencyUSD",
        ),
        Panel(
            "GPUs that are busy",
            {"{{instance}}": f"avg by (instance) (rate({m.WORKER_BUSY_SECONDS.name}[1h]))"},
            "percentunit",
        ),
        Panel("GPU-seconds per second, by model", {"{{model}}": rate_by(m.GPU_SECONDS, "model")}),
    ),
)

DASHBOARDS = (SERVICE, MODEL, GPU, TENANT, COST)


def all_dashboards() -> dict[str, Document]:
    """Every dashboard by its uid, in the JSON that Grafana imports. The output is stable."""
    return {one.name: _to_document(one) for one in DASHBOARDS}


def _to_document(dashboard: Dashboard) -> Document:
    variables: list[Document] = [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
    if dashboard.variable is not None:
        label, metric = dashboard.variable
        variables.append(
            {
                "name": label,
                "type": "query",
                "datasource": _SOURCE,
                "query": f"label_values({metric}, {label})",
                "includeAll": True,
                "multi": True,
                "refresh": 2,
            }
        )
    return {
        "uid": dashboard.name,
        "title": dashboard.title,
        "tags": ["filmgate"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_to_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _to_panel(number: int, panel: Panel) -> Document:
    row, column = divmod(number, _PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": _SOURCE}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }
