"""Every alert: its condition in PromQL, how urgent it is, and what it means. The runbooks have the rest."""

from dataclasses import dataclass
from enum import StrEnum

from filmgate.slo.recording import LATE_RATIO, P50, P99, WAITING, WAITING_BY_MODEL
from filmgate.telemetry import metrics as m

GPU_MEMORY_RATIO = 0.85
GPU_IDLE_RATIO = 0.3
GPU_CELSIUS = 83
POWER_RATIO = 0.98
THROTTLES_PER_SECOND = 0.1
CERTIFICATE_DAYS = 14
TAIL_FACTOR = 2
_THERMAL = "sw_thermal|hw_thermal|power_brake|hw_slowdown"


class Severity(StrEnum):
    """What an alert asks for: `page` wakes somebody, `ticket` waits for the morning."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule. `hold` is how long the condition must hold, as Prometheus writes it."""

    name: str
    expression: str
    severity: Severity
    summary: str
    hold: str = "0s"

    @property
    def runbook(self) -> str:
        """The name of the runbook page: FilmgateGpuHot has gpu-hot."""
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in self.name.removeprefix("Filmgate"))
        return words.removeprefix("-")


_PAGE, _TICKET = Severity.PAGE, Severity.TICKET


def all_alerts(target: float) -> tuple[Alert, ...]:
    """The alerts for this target, such as 0.95."""
    return (*slo_alerts(target), *SERVICE_ALERTS, *GPU_ALERTS)


def slo_alerts(target: float) -> tuple[Alert, ...]:
    """Late jobs, and burn rates over two windows each: the long one proves it, the short one ends it soon."""
    budget = 1 - target

    def burns(factor: float, long: str, short: str) -> str:
        limit = _number(factor * budget)
        return f"({LATE_RATIO.format(long)} > {limit} and {LATE_RATIO.format(short)} > {limit})"

    return (
        Alert(
            "FilmgateLateJobs",
            f"{LATE_RATIO.format('1h')} > {_number(budget)}",
            _PAGE,
            f"More than {_number(budget * 100)} % of the jobs of a class were late or failed in an hour.",
        ),
        Alert(
            "FilmgateErrorBudgetFastBurn",
            f"{burns(14.4, '1h', '5m')} or {burns(6, '6h', '30m')}",
            _PAGE,
            "At this rate, the error budget of 28 days is spent within five days.",
        ),
        Alert(
            "FilmgateErrorBudgetSlowBurn",
            f"{burns(3, '1d', '2h')} or {burns(1, '3d', '6h')}",
            _TICKET,
            "The error budget is spent faster than it is earned.",
        ),
    )


def _number(value: float) -> str:
    return f"{value:.6g}"


_WORKERS = f'max by (model) ({m.WORKERS.name}{{route="gpu"}})'
SERVICE_ALERTS = (
    Alert(
        "FilmgateTailLatency",
        f"{P99} > {TAIL_FACTOR} * {P50}",
        _TICKET,
        "The slowest 1 % of jobs take more than twice as long as the median job.",
        hold="10m",
    ),
    Alert(
        "FilmgateBacklogOverPromise",
        f'sum by (model) (max by (model, tenant) ({m.BACKLOG_SECONDS.name}{{route="gpu"}})) / {_WORKERS}'
        f" > on () group_left () max({m.PROMISE_SECONDS.name})",
        _PAGE,
        "The queued work takes longer than the promise: new requests are rejected with 429.",
        hold="2m",
    ),
    Alert(
        "FilmgateNoWorker",
        f"{WAITING_BY_MODEL} > 0 unless on (model) {_WORKERS} > 0",
        _PAGE,
        "Jobs wait for a model that no live worker serves.",
        hold="10m",
    ),
    Alert(
        "FilmgateWorkerSilent",
        f"(up == 0) and on (job, instance) (max_over_time({m.WORKER_READY.name}[30m]) == 1)",
        _PAGE,
        "A worker that was ready does not answer any more.",
        hold="2m",
    ),
    Alert(
        "FilmgateDatabaseDown",
        f"max({m.QUEUE_UP.name}) == 0",
        _PAGE,
        "No server reaches the job database.",
        hold="1m",
    ),
    Alert(
        "FilmgateBreakerOpen",
        f'max by (provider) ({m.BREAKER_PHASE.name}{{phase="open"}}) == 1',
        _TICKET,
        "The managed provider is not used because its calls fail.",
        hold="5m",
    ),
    Alert(
        "FilmgateStoreThrottled",
        f'sum(rate({m.THROTTLES.name}{{service="s3"}}[5m])) > {THROTTLES_PER_SECOND}',
        _TICKET,
        "S3 refuses calls because there are too many.",
        hold="5m",
    ),
    Alert(
        "FilmgateKmsThrottled",
        f'sum(rate({m.THROTTLES.name}{{service="kms"}}[5m])) > {THROTTLES_PER_SECOND}',
        _TICKET,
        "KMS refuses calls because there are too many.",
        hold="5m",
    ),
    Alert(
        "FilmgateCertificateExpiry",
        f"min({m.CERTIFICATE_EXPIRY.name}) - time() < {CERTIFICATE_DAYS * 86400}",
        _TICKET,
        f"The server's TLS certificate expires in less than {CERTIFICATE_DAYS} days.",
    ),
    Alert(
        "FilmgateAuditCheckpointFailing",
        f'sum(increase({m.TASK_FAILURES.name}{{task="audit checkpoint"}}[30m])) > 1',
        _PAGE,
        "Heads of the audit log cannot be signed or anchored, or a chain is broken.",
    ),
)

GPU_ALERTS = (
    Alert(
        "FilmgateGpuMemoryHigh",
        f"{m.GPU_MEMORY_USED.name} / {m.GPU_MEMORY_TOTAL.name} > {GPU_MEMORY_RATIO}",
        _TICKET,
        "More than 85 % of a GPU's memory is used.",
        hold="5m",
    ),
    Alert(
        "FilmgateGpuIdle",
        f"avg_over_time({m.GPU_UTILIZATION.name}[5m]) < {GPU_IDLE_RATIO}"
        f" and on () min_over_time({WAITING}[5m]) > 0",
        _TICKET,
        "A GPU was less than 30 % busy for 5 minutes although jobs wait.",
    ),
    Alert(
        "FilmgateGpuHot",
        f"{m.GPU_TEMPERATURE.name} >= {GPU_CELSIUS}",
        _TICKET,
        "A GPU has 83 degrees Celsius or more.",
        hold="2m",
    ),
    Alert(
        "FilmgateGpuPowerLimit",
        f"avg_over_time({m.GPU_POWER.name}[5m]) / {m.GPU_POWER_LIMIT.name} > {POWER_RATIO}",
        _TICKET,
        "A GPU draws as much power as its limit allows.",
        hold="5m",
    ),
    Alert(
        "FilmgateGpuThrottled",
        f'max by (instance, gpu) ({m.GPU_CLOCK_EVENT.name}{{reason=~"{_THERMAL}"}}) == 1',
        _TICKET,
        "The clocks of a GPU are slowed down by heat or by the hardware.",
        hold="2m",
    ),
    Alert(
        "FilmgateGpuDoubleBitError",
        f'{m.GPU_ECC_ERRORS.name}{{kind="double_bit",counter="volatile"}} > 0',
        _PAGE,
        "The memory of a GPU has errors that ECC cannot correct.",
    ),
    Alert(
        "FilmgateGpuRemapFailure",
        f"{m.GPU_REMAP_FAILURE.name} == 1",
        _PAGE,
        "A GPU could not remap a broken memory row: replace it.",
    ),
    Alert(
        "FilmgateGpuXid",
        # A counter that appears with its first event has not increased yet.
        f"increase({m.GPU_XID_ERRORS.name}[10m]) > 0"
        f" or ({m.GPU_XID_ERRORS.name} unless {m.GPU_XID_ERRORS.name} offset 10m) > 0",
        _TICKET,
        "The driver reported an XID error of a GPU.",
    ),
)
