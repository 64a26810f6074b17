"""Prometheus metrics of the queue, read from the database at each scrape.

They describe the whole service, not one process: all replicas report the same values, and a restart loses
nothing. Scrape one replica, or take the maximum over all of them, never the sum.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from filmgate.errors import QueueUnavailable
from filmgate.jobs import JobState
from filmgate.scheduling.base import JobReader
from filmgate.scheduling.records import DURATION_BOUNDS, Backlog, Statistics


class QueueCollector(Collector):
    """A collector for a CollectorRegistry. Reports only `filmgate_queue_up 0` while the database is down."""

    def __init__(self, reader: JobReader, now: Callable[[], float]) -> None:
        self._reader = reader
        self._now = now

    def describe(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("filmgate_queue_up", "1 while the job database is reachable.")

    def collect(self) -> Iterator[Metric]:
        try:
            backlog, statistics = self._reader.backlog(), self._reader.statistics()
        except QueueUnavailable:
            yield GaugeMetricFamily("filmgate_queue_up", "1 while the job database is reachable.", 0)
            return
        yield GaugeMetricFamily("filmgate_queue_up", "1 while the job database is reachable.", 1)
        yield from _describe_backlog(backlog, self._now())
        yield from _describe_history(statistics)


def _describe_backlog(backlog: Backlog, now: float) -> Iterator[Metric]:
    jobs = GaugeMetricFamily(
        "filmgate_jobs", "Queued and running jobs.", labels=["state", "route", "model", "tenant"]
    )
    seconds = GaugeMetricFamily(
        "filmgate_backlog_seconds",
        "Predicted GPU-seconds of queued jobs: the metric to scale on.",
        labels=["route", "model", "tenant"],
    )
    for count in backlog.counts:
        jobs.add_metric([count.state, count.route, count.model, count.tenant_id], count.jobs)
        if count.state is JobState.QUEUED:
            seconds.add_metric([count.route, count.model, count.tenant_id], count.gpu_seconds)
    oldest = 0.0 if backlog.oldest_queued_at is None else max(0.0, now - backlog.oldest_queued_at)
    yield jobs
    yield seconds
    yield GaugeMetricFamily("filmgate_oldest_queued_seconds", "Age of the oldest queued job.", oldest)
    workers = GaugeMetricFamily("filmgate_workers", "Live workers.", labels=["route", "model"])
    for (route, model), alive in sorted(_count_workers(backlog).items()):
        workers.add_metric([route, model], alive)
    yield workers


def _count_workers(backlog: Backlog) -> Counter[tuple[str, str]]:
    return Counter((worker.route.value, model) for worker in backlog.workers for model in worker.models)


def _describe_history(statistics: Statistics) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "filmgate_jobs_ended", "Ended jobs.", labels=["state", "reason", "route", "model", "tenant"]
    )
    gpu_seconds = CounterMetricFamily(
        "filmgate_gpu_seconds", "Measured GPU-seconds of completed jobs.", labels=["tenant", "model", "route"]
    )
    for end in statistics.ended:
        labels = [end.state, end.reason or "", end.route, end.model, end.tenant_id]
        ended.add_metric(labels, end.jobs)
        if end.state is JobState.COMPLETED:
            gpu_seconds.add_metric([end.tenant_id, end.model, end.route], end.gpu_seconds)
    routed = CounterMetricFamily(
        "filmgate_jobs_routed",
        "Routing decisions other than the default.",
        labels=["route", "reason", "model", "tenant"],
    )
    for routing in statistics.routed:
        routed.add_metric([routing.route, routing.reason, routing.model, routing.tenant_id], routing.jobs)
    yield ended
    yield gpu_seconds
    yield routed
    yield from _describe_durations(statistics)


def _describe_durations(statistics: Statistics) -> Iterator[Metric]:
    wait = HistogramMetricFamily(
        "filmgate_wait_seconds", "Seconds from acceptance to the first lease.", labels=["model"]
    )
    total = HistogramMetricFamily(
        "filmgate_job_seconds", "Seconds from acceptance to completion.", labels=["model"]
    )
    stage = HistogramMetricFamily("filmgate_stage_seconds", "Seconds per stage.", labels=["stage", "model"])
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
