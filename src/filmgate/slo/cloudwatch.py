"""The alerts as alarms of CloudWatch, for installations whose metrics go there by embedded metric format.

Conditions are Metrics Insights queries over the namespace, so that workers may come and go. Counters are
sent as increases, histograms as single values. Insights has neither percentiles nor more than three hours:
such an alarm reads the metric without dimensions, or several periods.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from filmgate.slo.alerts import (
    CERTIFICATE_DAYS,
    TAIL_FACTOR,
    TENANT_ALERT,
    THROTTLES_PER_SECOND,
    WORKER_ALERT,
    Alert,
)
from filmgate.slo.gpu_alerts import GPU_CELSIUS, GPU_IDLE_RATIO, GPU_MEMORY_RATIO, POWER_RATIO, all_alerts
from filmgate.slo.rules import runbook_url
from filmgate.telemetry import metrics as m
from filmgate.telemetry.emf import DROPPED, NAMESPACE

_MINUTE, _HOUR = 60, 3600
# CloudWatch has no metrics of single tenants, and no list of the workers that should report.
_WITHOUT_ALARM = frozenset({TENANT_ALERT, WORKER_ALERT})
Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Condition:
    """`result`, an expression over the named parts, is above `threshold` for `periods` periods."""

    parts: Mapping[str, str | Document]
    result: str
    threshold: float
    period: int = _MINUTE
    periods: int = 1
    is_missing_bad: bool = False


def _select(fold: str, metric: m.Metric, where: str = "") -> str:
    """A query over the metric with all its dimensions: the one without dimensions would count twice."""
    names = [f'"{name}"' for name in sorted(metric.labels) if name not in DROPPED]
    space = f'"{NAMESPACE}"'
    source = f"SCHEMA({', '.join([space, *names])})" if names else space
    condition = f" WHERE {where}" if where else ""
    return f'SELECT {fold}("{metric.name}") FROM {source}{condition}'  # noqa: S608 - not a database


def _stat(metric: m.Metric, stat: str) -> Document:
    """A statistic of the metric without dimensions."""
    return {"Metric": {"Namespace": NAMESPACE, "MetricName": metric.name}, "Stat": stat}


_WAITING = _select("SUM", m.JOBS, "state = 'queued' AND route = 'gpu'")


def conditions(promise_seconds: float) -> dict[str, Condition]:
    """The condition of every alert by its name, except for those without an alarm."""
    return _slo_conditions() | _service_conditions(promise_seconds) | _gpu_conditions()


def _slo_conditions() -> dict[str, Condition]:
    hour = {
        "late": _select("SUM", m.SLO_JOBS, "result = 'late'"),
        "allowed": _select("SUM", m.SLO_LATE_ALLOWED),
    }
    burn = "late / allowed"
    return {
        "FilmgateLateJobs": Condition(hour, burn, 1, _HOUR),
        "FilmgateErrorBudgetFastBurn": Condition(hour, burn, 14.4, _HOUR),
        "FilmgateErrorBudgetSlowBurn": Condition(hour, burn, 3, _HOUR, periods=3),
    }


def _service_conditions(promise_seconds: float) -> dict[str, Condition]:
    workers = _select("SUM", m.WORKERS, "route = 'gpu'")

    def throttled(service: str) -> Condition:
        calls = {"calls": _select("SUM", m.THROTTLES, f"service = '{service}'")}
        return Condition(calls, "calls", THROTTLES_PER_SECOND * _MINUTE, periods=5)

    seconds = {stat: _stat(m.JOB_SECONDS, stat) for stat in ("p99", "p50")}
    return {
        "FilmgateTailLatency": Condition(seconds, "p99 / p50", TAIL_FACTOR, _HOUR),
        "FilmgateBacklogOverPromise": Condition(
            {"backlog": _select("SUM", m.BACKLOG_SECONDS, "route = 'gpu'"), "workers": workers},
            "backlog / workers",
            promise_seconds,
            periods=2,
        ),
        "FilmgateNoWorker": Condition(
            {"waiting": _WAITING, "workers": workers},
            "IF(waiting > 0 AND FILL(workers, 0) < 1, 1, 0)",
            0,
            periods=10,
        ),
        "FilmgateDatabaseDown": Condition(
            {"up": _select("MAX", m.QUEUE_UP)}, "1 - up", 0, is_missing_bad=True
        ),
        "FilmgateBreakerOpen": Condition(
            {"closed": _select("MIN", m.BREAKER_PHASE, "phase = 'closed'")}, "1 - closed", 0, periods=5
        ),
        "FilmgateStoreThrottled": throttled("s3"),
        "FilmgateKmsThrottled": throttled("kms"),
        "FilmgateCertificateExpiry": Condition(
            {"expires": _select("MIN", m.CERTIFICATE_EXPIRY)},
            f"{CERTIFICATE_DAYS * 86400} - (expires - EPOCH(expires))",
            0,
        ),
        "FilmgateAuditCheckpointFailing": Condition(
            {"failures": _select("SUM", m.TASK_FAILURES, "task = 'audit checkpoint'")}, "failures", 1, 1800
        ),
    }


def _gpu_conditions() -> dict[str, Condition]:
    events = _select("MAX", m.GPU_CLOCK_EVENT, "reason != 'power_cap'")
    double = _select("MAX", m.GPU_ECC_ERRORS, "kind = 'double_bit' AND counter = 'volatile'")
    return {
        "FilmgateGpuMemoryHigh": Condition(
            {"used": _select("MAX", m.GPU_MEMORY_USED), "all": _select("MIN", m.GPU_MEMORY_TOTAL)},
            "used / all",
            GPU_MEMORY_RATIO,
            periods=5,
        ),
        "FilmgateGpuIdle": Condition(
            {"busy": _select("MIN", m.GPU_UTILIZATION), "waiting": _WAITING},
            f"IF(busy < {GPU_IDLE_RATIO} AND waiting > 0, 1, 0)",
            0,
            periods=5,
        ),
        "FilmgateGpuHot": Condition(
            {"celsius": _select("MAX", m.GPU_TEMPERATURE)}, "celsius", GPU_CELSIUS - 1, periods=2
        ),
        "FilmgateGpuPowerLimit": Condition(
            {"watts": _select("MAX", m.GPU_POWER), "limit": _select("MAX", m.GPU_POWER_LIMIT)},
            "watts / limit",
            POWER_RATIO,
            periods=5,
        ),
        "FilmgateGpuThrottled": Condition({"slow": events}, "slow", 0, periods=2),
        "FilmgateGpuDoubleBitError": Condition({"errors": double}, "errors", 0),
        "FilmgateGpuRemapFailure": Condition({"failed": _select("MAX", m.GPU_REMAP_FAILURE)}, "failed", 0),
        "FilmgateGpuXid": Condition({"events": _select("SUM", m.GPU_XID_ERRORS)}, "events", 0),
    }


def alarm_documents(promise_seconds: float, runbooks: str, topic: str = "") -> list[Document]:
    """Inputs of `aws cloudwatch put-metric-alarm --cli-input-json`, one per alert."""
    known = conditions(promise_seconds)
    alerts = [alert for alert in all_alerts() if alert.name not in _WITHOUT_ALARM]
    return [_to_alarm(alert, known[alert.name], runbooks, topic) for alert in alerts]


def _to_alarm(alert: Alert, condition: Condition, runbooks: str, topic: str) -> Document:
    parts = [_to_query(part, query, condition.period) for part, query in condition.parts.items()]
    result = {"Id": "result", "Expression": condition.result, "Label": alert.name, "ReturnData": True}
    return {
        "AlarmName": alert.name,
        "AlarmDescription": f"{alert.summary} {runbook_url(alert, runbooks)}",
        "Metrics": [*parts, result],
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": round(condition.threshold, 6),
        "EvaluationPeriods": condition.periods,
        "DatapointsToAlarm": condition.periods,
        "TreatMissingData": "breaching" if condition.is_missing_bad else "notBreaching",
        "ActionsEnabled": bool(topic),
        "AlarmActions": [topic] if topic else [],
        "Tags": [{"Key": "severity", "Value": alert.severity.value}],
    }


def _to_query(name: str, part: str | Document, period: int) -> Document:
    if isinstance(part, str):
        return {"Id": name, "Expression": part, "Period": period, "ReturnData": False}
    return {"Id": name, "MetricStat": part | {"Period": period}, "ReturnData": False}
