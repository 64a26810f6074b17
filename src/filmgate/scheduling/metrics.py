"""Prometheus metrics of the queue, read from the database at each scrape.

They describe the whole service, not one process: all replicas report the same values, and a restart loses
nothing. Scrape one replica, or take the maximum over all of them, never the sum.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from filmgate.errors import QueueUnavailable
from filmgate.jobs import JobState, Route
from filmgate.scheduling.base import JobReader
from filmgate.scheduling.durations import COLD_START, MODEL_LOAD, TOTAL, WAIT
from filmgate.scheduling.records import DURATION_BOUNDS, Backlog, EndedJobs, Histogram, Statistics
from filmgate.settings import Settings
from filmgate.slo.counts import SloCount
from filmgate.telemetry import metrics

_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIGEST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class QueueTerms:
    """The settings that the metrics of the queue depend on."""

    promise_seconds: float
    usd_per_gpu_hour: float
    max_tenants: int

    @classmethod
    def of(cls, settings: Settings) -> "QueueTerms":
        price, max_tenants = settings.api.usd_per_gpu_hour, settings.management.max_tenants
        return cls(settings.admission.promise_seconds, price, max_tenants)


class QueueCollector(Collector):
    """A collector for a CollectorRegistry. Reports only `filmgate_queue_up 0` while the database is down."""

    def __init__(self, reader: JobReader, now: Callable[[], float], terms: QueueTerms) -> None:
        self._reader = reader
        self._now = now
        self._terms = terms

    def describe(self) -> Iterator[Metric]:
        yield metrics.QUEUE_UP.gauge()

    def collect(self) -> Iterator[Metric]:
        try:
            backlog = self._reader.backlog()
            statistics = self._reader.statistics(max_tenants=self._terms.max_tenants)
        except QueueUnavailable:
            yield _value(metrics.QUEUE_UP, 0)
            return
        yield _value(metrics.QUEUE_UP, 1)
        yield _value(metrics.PROMISE_SECONDS, self._terms.promise_seconds)
        yield from _describe_backlog(backlog, self._now())
        yield from _describe_history(statistics)
        yield from _describe_slo(statistics.slo)
        yield from _describe_cost(statistics.ended, self._terms.usd_per_gpu_hour)
        yield from _describe_durations(statistics.histograms)


def version_label(version: str) -> str:
    """The label of a version: the first digits of a digest, or the provider's model as it is."""
    return version[:_DIGEST_DIGITS] if _DIGEST.fullmatch(version) else version


def _value(metric: metrics.Metric, value: float) -> GaugeMetricFamily:
    family = metric.gauge()
    family.add_metric([], value)
    return family


def _describe_backlog(backlog: Backlog, now: float) -> Iterator[Metric]:
    jobs, seconds = metrics.JOBS.gauge(), metrics.BACKLOG_SECONDS.gauge()
    for count in backlog.counts:
        jobs.add_metric([count.state, count.route, count.model, count.tenant_id], count.jobs)
        if count.state is JobState.QUEUED:
            seconds.add_metric([count.route, count.model, count.tenant_id], count.gpu_seconds)
    oldest = 0.0 if backlog.oldest_queued_at is None else max(0.0, now - backlog.oldest_queued_at)
    yield jobs
    yield seconds
    yield _value(metrics.OLDEST_QUEUED_SECONDS, oldest)
    workers = metrics.WORKERS.gauge()
    for (route, model), alive in sorted(_count_workers(backlog).items()):
        workers.add_metric([route, model], alive)
    yield workers


def _count_workers(backlog: Backlog) -> Counter[tuple[str, str]]:
    return Counter((worker.route.value, model) for worker in backlog.workers for model in worker.models)


def _describe_slo(counts: Iterable[SloCount]) -> Iterator[Metric]:
    jobs, allowed = metrics.SLO_JOBS.counter(), metrics.SLO_LATE_ALLOWED.counter()
    for count in counts:
        allowed.add_metric([count.tenant_id, count.name], count.allowed)
        jobs.add_metric([count.tenant_id, count.name, "good"], count.jobs - count.late)
        jobs.add_metric([count.tenant_id, count.name, "late"], count.late)
    yield jobs
    yield allowed


def _describe_history(statistics: Statistics) -> Iterator[Metric]:
    ended, gpu_seconds = metrics.JOBS_ENDED.counter(), metrics.GPU_SECONDS.counter()
    for end in statistics.ended:
        version = version_label(end.version)
        ended.add_metric(
            [end.state, end.reason or "", end.route, end.model, version, end.tenant_id], end.jobs
        )
        if end.state is JobState.COMPLETED:
            gpu_seconds.add_metric([end.tenant_id, end.model, version, end.route], end.gpu_seconds)
    routed = metrics.JOBS_ROUTED.counter()
    for routing in statistics.routed:
        routed.add_metric([routing.route, routing.reason, routing.model, routing.tenant_id], routing.jobs)
    yield ended
    yield gpu_seconds
    yield routed


def _describe_cost(ended: Iterable[EndedJobs], usd_per_gpu_hour: float) -> Iterator[Metric]:
    total, per_clip = metrics.COST_USD.counter(), metrics.COST_USD_PER_1000_CLIPS.gauge()
    by_series: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    by_model: defaultdict[tuple[str, str], float] = defaultdict(float)
    clips: Counter[tuple[str, str]] = Counter()
    for end in ended:
        if end.route is Route.GPU and not usd_per_gpu_hour:
            continue
        usd = end.provider_usd + end.gpu_seconds / 3600 * usd_per_gpu_hour * (end.route is Route.GPU)
        by_series[end.tenant_id, end.model, version_label(end.version), end.route.value] += usd
        by_model[end.model, end.route.value] += usd
        clips[end.model, end.route.value] += end.jobs if end.state is JobState.COMPLETED else 0
    for labels, usd in sorted(by_series.items()):
        total.add_metric(labels, usd)
    for key, usd in sorted(by_model.items()):
        if clips[key]:
            per_clip.add_metric(key, 1000 * usd / clips[key])
    yield total
    yield per_clip


def _describe_durations(histograms: Iterable[Histogram]) -> Iterator[Metric]:
    families = {kind: metric.histogram() for kind, metric in _FAMILIES.items()}
    stages = metrics.STAGE_SECONDS.histogram()
    for histogram in histograms:
        series = histogram.series
        own = [series.model, version_label(series.version), series.route.value]
        match series.kind:
            case "wait" | "total":
                _add(families[series.kind], [*own, series.tenant_id], histogram)
            case "model_load" | "cold_start":
                _add(families[series.kind], own[:2], histogram)
            case stage:
                _add(stages, [stage, *own], histogram)
    yield from families.values()
    yield stages


_FAMILIES = {
    WAIT: metrics.WAIT_SECONDS,
    TOTAL: metrics.JOB_SECONDS,
    MODEL_LOAD: metrics.MODEL_LOAD_SECONDS,
    COLD_START: metrics.COLD_START_SECONDS,
}
_BOUNDS = [*map(str, DURATION_BOUNDS), "+Inf"]


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for number, count in enumerate(accumulate(histogram.counts)):
        example = histogram.examples.get(number)
        if example is None:
            buckets.append((_BOUNDS[number], count))
        else:
            named = Exemplar({"trace_id": example.trace_id}, example.seconds, example.at)
            buckets.append((_BOUNDS[number], count, named))
    family.add_metric(labels, buckets, histogram.seconds)
