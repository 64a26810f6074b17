"""Alerts on objectives and the service: their conditions in PromQL, how urgent they are, and what they mean.

The runbooks have the rest.
"""

from dataclasses import dataclass
from enum import StrEnum

from filmgate.slo.recording import BURN_RATE, P50, P99, WAITING_BY_MODEL, burn_rate
from filmgate.telemetry import metrics as m

THROTTLES_PER_SECOND = 0.1
CERTIFICATE_DAYS = 14
TAIL_FACTOR = 2
# A share of late jobs means little for a tenant with fewer jobs than this in the window.
TENANT_ALERT, _TENANT_JOBS, _TENANT_WINDOW = "FilmgateTenantLateJobs", 20, "6h"
WORKER_ALERT = "FilmgateWorkerSilent"


class Severity(StrEnum):
    """How urgent an alert is: `page` calls the on-call engineer, `ticket` can wait until the morning."""

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


def _burns(factor: float, long: str, short: str) -> str:
    return f"({BURN_RATE.format(long)} > {factor:g} and {BURN_RATE.format(short)} > {factor:g})"


_JOBS_OF_TENANT = (
    f"sum by (tenant, class) (max by (tenant, class, result) (increase({m.SLO_JOBS.name}[{_TENANT_WINDOW}])))"
)
# A burn rate over 1 means more late jobs than the targets allow. Each rule about the error budget has two
# windows: the long one proves it, the short one ends it soon.
SLO_ALERTS = (
    Alert(
        "FilmgateLateJobs",
        f"{BURN_RATE.format('1h')} > 1",
        _PAGE,
        "More jobs of a class were late or failed in an hour than its target allows, 5 % by default.",
    ),
    Alert(
        TENANT_ALERT,
        f"{burn_rate(_TENANT_WINDOW, 'tenant', 'class')} > 1 and {_JOBS_OF_TENANT} >= {_TENANT_JOBS}",
        _TICKET,
        "More jobs of a tenant were late or failed in six hours than its target allows.",
        hold="10m",
    ),
    Alert(
        "FilmgateErrorBudgetFastBurn",
        f"{_burns(14.4, '1h', '5m')} or {_burns(6, '6h', '30m')}",
        _PAGE,
        "At this rate, the error budget of 28 days is spent within five days.",
    ),
    Alert(
        "FilmgateErrorBudgetSlowBurn",
        f"{_burns(3, '1d', '2h')} or {_burns(1, '3d', '6h')}",
        _TICKET,
        "The error budget is spent faster than it is earned.",
    ),
)


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
        "The queued work takes longer than the promise, so new requests are rejected with 429.",
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
        WORKER_ALERT,
        f"(up == 0) and on (job, instance) (max_over_time({m.WORKER_READY.name}[30m]) == 1)",
        _PAGE,
        "A worker that was ready has stopped responding.",
        hold="2m",
    ),
    Alert(
        "FilmgateDatabaseDown",
        # No series means the same: no server runs, or a silent database makes every scrape too slow.
        f"absent({m.QUEUE_UP.name} == 1)",
        _PAGE,
        "No server reaches the job database.",
        hold="1m",
    ),
    Alert(
        "FilmgateBreakerOpen",
        # A probe is half-open for as long as the provider lets it wait.
        f'max by (provider) ({m.BREAKER_PHASE.name}{{phase="closed"}}) == 0',
        _TICKET,
        "The managed provider is not used because its calls fail.",
        hold="5m",
    ),
    Alert(
        "FilmgateStoreThrottled",
        f'sum(rate({m.THROTTLES.name}{{service="s3"}}[5m])) > {THROTTLES_PER_SECOND}',
        _TICKET,
        "S3 is throttling requests.",
        hold="5m",
    ),
    Alert(
        "FilmgateKmsThrottled",
        f'sum(rate({m.THROTTLES.name}{{service="kms"}}[5m])) > {THROTTLES_PER_SECOND}',
        _TICKET,
        "KMS is throttling requests.",
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
        f'sum(increase({m.TASK_FAILURES.name}{{task="audit checkpoint"}}[30m])) >= 2',
        _PAGE,
        "Heads of the audit log cannot be signed or anchored, or a chain is broken.",
    ),
)
