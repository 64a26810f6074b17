"""Recording rules: ratios and percentiles that alerts and dashboards share.

Metrics from the database are the same in all replicas: the maximum over replicas comes before any sum.
"""

from collections.abc import Sequence

from filmgate.telemetry import metrics as m

# The windows of the burn-rate alerts, by name.
WINDOWS = {
    "5m": 300.0,
    "30m": 1800.0,
    "1h": 3600.0,
    "2h": 7200.0,
    "6h": 21600.0,
    "1d": 86400.0,
    "3d": 259200.0,
}
BURN_RATE = "filmgate:slo_burn:rate{}"
LATE_RATIO = "filmgate:slo_late:ratio_rate1h"
P50, P95, P99 = (f"filmgate:job_seconds:p{quantile}_1h" for quantile in (50, 95, 99))
WAITING = "filmgate:jobs_waiting:sum"
WAITING_BY_MODEL = "filmgate:jobs_waiting:by_model"


def sum_by(metric: m.Metric, labels: Sequence[str], expression: str) -> str:
    """The sum of an expression over a metric of the database, by these labels."""
    return f"sum by ({', '.join(labels)}) (max by ({', '.join(metric.labels)}) ({expression}))"


def rate_by(metric: m.Metric, *labels: str, match: str = "", window: str = "5m") -> str:
    """The rate of a counter of the database, by these labels."""
    return sum_by(metric, labels, f"rate({metric.name}{{{match}}}[{window}])")


def late_ratio(window: str, *labels: str, match: str = "") -> str:
    """The share of late jobs in a window, by these labels."""
    return _late_over(m.SLO_JOBS, window, labels, match)


def burn_rate(window: str, *labels: str, match: str = "") -> str:
    """Late jobs over those that the targets allow, in a window, by these labels."""
    return _late_over(m.SLO_LATE_ALLOWED, window, labels, match)


def _late_over(metric: m.Metric, window: str, labels: Sequence[str], match: str) -> str:
    late = rate_by(m.SLO_JOBS, *labels, match=f'{match}result="late"', window=window)
    return f"{late} / {rate_by(metric, *labels, match=match, window=window)}"


def percentile(metric: m.Metric, quantile: float, *labels: str, match: str = "") -> str:
    """A percentile of a histogram of the database in an hour, by these labels."""
    selected = f"{metric.name}_bucket{{{match}}}" if match else f"{metric.name}_bucket"
    largest = f"max by ({', '.join(('le', *metric.labels))}) (rate({selected}[1h]))"
    return f"histogram_quantile({quantile:g}, sum by ({', '.join(('le', *labels))}) ({largest}))"


def waiting(*labels: str) -> str:
    """Jobs that wait for local GPUs, by these labels."""
    kept = f" by ({', '.join(labels)}) " if labels else ""
    return f'sum{kept}(max by (model, tenant) ({m.JOBS.name}{{state="queued",route="gpu"}}))'


# The expression of each recorded series.
RECORDINGS = {
    LATE_RATIO: late_ratio("1h", "class"),
    **{BURN_RATE.format(window): burn_rate(window, "class") for window in WINDOWS},
    P50: percentile(m.JOB_SECONDS, 0.5, "model", "route"),
    P95: percentile(m.JOB_SECONDS, 0.95, "model", "route"),
    P99: percentile(m.JOB_SECONDS, 0.99, "model", "route"),
    WAITING: waiting(),
    WAITING_BY_MODEL: waiting("model"),
}
