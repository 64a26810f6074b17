"""The queue as Prometheus families, read from the database at each scrape.

They describe the whole service, not one process: every replica answers alike, and a restart forgets
nothing. Scrape one replica, or take the maximum over all of them, never the sum.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from filmgate.errors import QueueUnavailable
from filmgate.jobs import JobState
from filmgate.scheduling.base import DURATION_BOUNDS, Backlog, JobBook, JobQueue, Statistics

_HEARD_SECONDS = 30.0


class QueueCollector(Collector):
    """Register it with a CollectorRegistry. While the database is down it reports just that."""

    def __init__(self, queue: JobQueue, book: JobBook, now: Callable[[], float]) -> None:
        self._queue = queue
        self._book = book
        self._now = now

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("filmgate_queue_up", "1 while the job database answers")

    def collect(self) -> Iterator[Metric]:
        try:
            backlog, statistics = self._queue.backlog(), self._book.statistics()
        except QueueUnavailable:
            yield GaugeMetricFamily("filmgate_queue_up", "1 while the job database answers", 0)
            return
        yield GaugeMetricFamily("filmgate_queue_up", "1 while the job database answers", 1)
        yield from _describe_backlog(backlog, self._now())
        yield from _describe_history(statistics)


def _describe_backlog(backlog: Backlog, now: float) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "filmgate_jobs", "Jobs waiting or running now", labels=["state", "route", "model", "tenant"]
    )
    seconds = GaugeMetricFamily(
        "filmgate_backlog_seconds",
        "Predicted GPU-seconds waiting: what to scale on",
        labels=["route", "model", "tenant"],
    )
    for load in backlog.loads:
        jobs.add_metric([load.state, load.route, load.model, load.tenant_id], load.jobs)
        if load.state is JobState.QUEUED:
            seconds.add_metric([load.route, load.model, load.tenant_id], load.gpu_seconds)
    oldest = 0.0 if backlog.oldest_queued_at is None else max(0.0, now - backlog.oldest_queued_at)
    yield jobs
    yield seconds
    yield GaugeMetricFamily("filmgate_oldest_queued_seconds", "Age of the job that waits longest", oldest)
    workers = GaugeMetricFamily(
        "filmgate_workers", "Workers heard of within half a minute", labels=["route", "model"]
    )
    for (route, model), count in sorted(_count_workers(backlog).items()):
        workers.add_metric([route, model], count)
    yield workers


def _count_workers(backlog: Backlog) -> Counter[tuple[str, str]]:
    heard = [worker for worker in backlog.workers if worker.silent_seconds < _HEARD_SECONDS]
    return Counter((worker.route.value, model) for worker in heard for model in worker.models)


def _describe_history(statistics: Statistics) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "filmgate_jobs_ended", "Jobs that ended", labels=["state", "reason", "route", "model", "tenant"]
    )
    gpu_seconds = CounterMetricFamily(
        "filmgate_gpu_seconds", "Measured GPU-seconds of completed jobs", labels=["tenant", "model", "route"]
    )
    for tally in statistics.tallies:
        labels = [tally.state, tally.reason or "", tally.route, tally.model, tally.tenant_id]
        ended.add_metric(labels, tally.jobs)
        if tally.state is JobState.COMPLETED:
            gpu_seconds.add_metric([tally.tenant_id, tally.model, tally.route], tally.gpu_seconds)
    routed = CounterMetricFamily(
        "filmgate_jobs_routed",
        "Decisions on routes other than the usual (home), jobs that stay against the odds included",
        labels=["route", "reason", "model", "tenant"],
    )
    for routing in statistics.routings:
        routed.add_metric([routing.route, routing.reason, routing.model, routing.tenant_id], routing.jobs)
    yield ended
    yield gpu_seconds
    yield routed
    yield from _describe_durations(statistics)


def _describe_durations(statistics: Statistics) -> Iterator[Metric]:
    wait = HistogramMetricFamily("filmgate_wait_seconds", "Accepted to started", labels=["model"])
    total = HistogramMetricFamily("filmgate_job_seconds", "Accepted to completed", labels=["model"])
    stage = HistogramMetricFamily("filmgate_stage_seconds", "Time in a stage", labels=["stage", "model"])
    bounds = [*map(str, DURATION_BOUNDS), "+Inf"]
    for histogram in statistics.histograms:
        buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
        if histogram.kind == "wait":
            wait.add_metric([histogram.model], buckets, histogram.seconds)
        elif histogram.kind == "total":
            total.add_metric([histogram.model], buckets, histogram.seconds)
        else:
            stage.add_metric([histogram.kind, histogram.model], buckets, histogram.seconds)
    yield wait
    yield total
    yield stage
