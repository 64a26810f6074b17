"""Every metric that Filmgate exports: name, type, labels and meaning. docs/metrics.md is written from here.

Code that exports a metric takes it from this module, so that no name exists in two places.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily


class Kind(StrEnum):
    """The Prometheus type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Source(StrEnum):
    """Which process exports a metric."""

    DATABASE = "server, from the database: all replicas report the same values"
    SERVER = "server, per process"
    WORKER = "worker"
    GPU = "GPU worker (NVML)"
    PROCESS = "server and worker, per process"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `dcgm` is the field of the DCGM exporter with the same meaning."""

    name: str
    kind: Kind
    source: Source
    help: str
    labels: tuple[str, ...] = ()
    dcgm: str = ""

    def gauge(self) -> GaugeMetricFamily:
        """An empty family for a collector that reads its values at each scrape."""
        return GaugeMetricFamily(self.name, self.help, labels=self.labels)

    def counter(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.name, self.help, labels=self.labels)

    def histogram(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.name, self.help, labels=self.labels)

    def live_gauge(self, registry: CollectorRegistry | None) -> Gauge:
        """A metric that this process changes itself."""
        return Gauge(self.name, self.help, self.labels, registry=registry)

    def live_counter(self, registry: CollectorRegistry | None) -> Counter:
        return Counter(self.name, self.help, self.labels, registry=registry)

    def live_histogram(
        self, registry: CollectorRegistry | None, bounds: Sequence[float] = Histogram.DEFAULT_BUCKETS
    ) -> Histogram:
        return Histogram(self.name, self.help, self.labels, registry=registry, buckets=bounds)


def _gauge(source: Source, name: str, text: str, labels: str = "") -> Metric:
    return Metric(f"filmgate_{name}", Kind.GAUGE, source, text, tuple(labels.split()))


def _counter(source: Source, name: str, text: str, labels: str = "") -> Metric:
    return Metric(f"filmgate_{name}_total", Kind.COUNTER, source, text, tuple(labels.split()))


def _histogram(source: Source, name: str, text: str, labels: str = "") -> Metric:
    return Metric(f"filmgate_{name}", Kind.HISTOGRAM, source, text, tuple(labels.split()))


def _gpu_gauge(name: str, text: str, dcgm: str = "", labels: str = "") -> Metric:
    return Metric(f"filmgate_gpu_{name}", Kind.GAUGE, Source.GPU, text, ("gpu", *labels.split()), dcgm)


def _gpu_counter(name: str, text: str, dcgm: str, labels: str = "") -> Metric:
    return Metric(
        f"filmgate_gpu_{name}_total", Kind.COUNTER, Source.GPU, text, ("gpu", *labels.split()), dcgm
    )


_DB, _SERVER, _WORKER = Source.DATABASE, Source.SERVER, Source.WORKER

QUEUE_UP = _gauge(_DB, "queue_up", "1 while the job database is reachable.")
JOBS = _gauge(_DB, "jobs", "Queued and running jobs.", "state route model tenant")
BACKLOG_SECONDS = _gauge(
    _DB,
    "backlog_seconds",
    "Predicted GPU-seconds of queued jobs: the metric to scale on.",
    "route model tenant",
)
OLDEST_QUEUED_SECONDS = _gauge(
    _DB, "oldest_queued_seconds", "Age of the oldest queued job, including jobs that wait for a retry."
)
PROMISE_SECONDS = _gauge(
    _DB,
    "promise_seconds",
    "The `admission.promise_seconds` setting: jobs that would take longer are rejected.",
)
SLO_JOBS = _counter(
    _DB,
    "slo_jobs",
    "Finished jobs by class of clip: `result` good (met the objective) or late (missed it, or failed). "
    "Cancelled jobs are not counted.",
    "tenant class result",
)
SLO_LATE_ALLOWED = _counter(
    _DB,
    "slo_late_allowed",
    "Number of these jobs that may be late: each adds 1 - its target. The burn rate is late jobs / this.",
    "tenant class",
)
WORKERS = _gauge(_DB, "workers", "Live workers.", "route model")
JOBS_ENDED = _counter(_DB, "jobs_ended", "Finished jobs.", "state reason route model version tenant")
GPU_SECONDS = _counter(
    _DB, "gpu_seconds", "Measured GPU-seconds of completed jobs.", "tenant model version route"
)
COST_USD = _counter(
    _DB,
    "cost_usd",
    "Price of finished jobs: GPU-seconds at api.usd_per_gpu_hour, or what the provider charges. No value for "
    "local GPUs while that setting is 0.",
    "tenant model version route",
)
COST_USD_PER_1000_CLIPS = _gauge(
    _DB,
    "cost_usd_per_1000_clips",
    "Price of all finished jobs per 1,000 completed jobs, since the database was created.",
    "model route",
)
JOBS_ROUTED = _counter(
    _DB, "jobs_routed", "Routing decisions other than the default.", "route reason model tenant"
)
WAIT_SECONDS = _histogram(
    _DB, "wait_seconds", "Seconds from acceptance to the first lease.", "model version route tenant"
)
JOB_SECONDS = _histogram(
    _DB,
    "job_seconds",
    "Seconds from acceptance to completion. Local GPUs and providers differ by `route`.",
    "model version route tenant",
)
STAGE_SECONDS = _histogram(
    _DB,
    "stage_seconds",
    "Seconds per stage of completed jobs; a stage that a job did not have is not observed.",
    "stage model version route",
)
MODEL_LOAD_SECONDS = _histogram(
    _DB,
    "model_load_seconds",
    "Seconds to load a model onto a device, at start-up and between jobs.",
    "model version",
)
COLD_START_SECONDS = _histogram(
    _DB,
    "cold_start_seconds",
    "Seconds from the start of a worker process until it can lease jobs; `model` is its default model.",
    "model version",
)
BREAKER_PHASE = _gauge(
    _DB,
    "breaker_phase",
    "1 for the current phase of a provider's circuit breaker: closed, half_open or open.",
    "provider phase",
)

HTTP_REQUESTS = _counter(_SERVER, "http_requests", "HTTP requests.", "method route status")
HTTP_REQUEST_SECONDS = _histogram(
    _SERVER, "http_request_seconds", "Seconds until the first byte of the response.", "method route"
)
HTTP_REFUSED = _counter(_SERVER, "http_refused", "Requests and connections rejected by a limit.", "reason")
FAILED_LOGINS = _counter(_SERVER, "failed_logins", "Requests with an invalid API key.")
HTTP_CONNECTIONS = _gauge(_SERVER, "http_connections", "Open connections.")
CERTIFICATE_EXPIRY = _gauge(
    _SERVER,
    "tls_certificate_expiry_timestamp_seconds",
    "When the certificate that the server uses expires. No value without TLS.",
)

TASK_FAILURES = _counter(
    Source.PROCESS, "task_failures", "Failed runs of a background task, or of one of its items.", "task"
)
THROTTLES = _counter(
    Source.PROCESS,
    "downstream_throttles",
    "Calls that a service throttled: s3, kms, sqs, bedrock-runtime or provider. "
    "Every attempt counts, including retries.",
    "service",
)

WORKER_INFO = _gauge(
    _WORKER, "worker_info", "Always 1; the labels identify the worker.", "worker route device gpu"
)
WORKER_READY = _gauge(_WORKER, "worker_ready", "1 while /readyz responds with 200.")
WORKER_START_SECONDS = _gauge(
    _WORKER, "worker_start_seconds", "Seconds from the start of this process until it could lease jobs."
)
WORKER_BUSY = _gauge(_WORKER, "worker_busy", "1 while a job is on the device.")
WORKER_BUSY_SECONDS = _counter(_WORKER, "worker_busy_seconds", "Seconds with a job on the device.")
WORKER_IDLE_SECONDS = _counter(_WORKER, "worker_idle_seconds", "Seconds ready, without a job on the device.")
WORKER_GAP_SECONDS = _histogram(
    _WORKER,
    "worker_gap_seconds",
    "Seconds the device was idle between two clips although the next job was already waiting.",
)
MODEL_LOADED = _gauge(_WORKER, "model_loaded", "1 while the model is on the device.", "model version")
ATTEMPTS_FAILED = _counter(
    _WORKER, "attempts_failed", "Attempts that ended without a clip.", "model version reason"
)
OUT_OF_MEMORY = _counter(
    _WORKER, "out_of_memory", "CUDA out-of-memory errors, including those that a retry solved.", "model"
)
LADDER_STEPS = _counter(
    _WORKER,
    "memory_ladder_steps",
    "Steps down the memory ladder while decoding, by the new rung.",
    "model rung",
)
CANARY_RUNS = _counter(_WORKER, "canary_runs", "Canary clips by result: passed or failed.", "model result")
CANARY_DIFFERENCE = _gauge(
    _WORKER,
    "canary_difference_levels",
    "Mean difference between the last canary clip and the golden clip, in luma levels of 0 to 255.",
    "model",
)
CANARY_PASSED_AT = _gauge(
    _WORKER, "canary_passed_timestamp_seconds", "When a canary clip last passed.", "model"
)

RDMA_ERRORS = _counter(
    _WORKER,
    "rdma_errors",
    "Errors of RDMA network adapters such as EFA, by the kernel's name of the counter.",
    "device port counter",
)

GPU_UP = _gpu_gauge("up", "1 while NVML reports the GPU; 0 if the GPU is lost.")
GPU_HEALTHY = _gpu_gauge("healthy", "0 after a double-bit error, a row remapping failure or a lost GPU.")
GPU_UTILIZATION = _gpu_gauge(
    "utilization_ratio", "Share of time with a kernel on the GPU, 0 to 1.", "DCGM_FI_DEV_GPU_UTIL (percent)"
)
GPU_MEMORY_COPY_UTILIZATION = _gpu_gauge(
    "memory_copy_utilization_ratio",
    "Share of time with memory traffic, 0 to 1.",
    "DCGM_FI_DEV_MEM_COPY_UTIL (percent)",
)
GPU_MEMORY_USED = _gpu_gauge("memory_used_bytes", "Used memory.", "DCGM_FI_DEV_FB_USED (MiB)")
GPU_MEMORY_FREE = _gpu_gauge("memory_free_bytes", "Free memory.", "DCGM_FI_DEV_FB_FREE (MiB)")
GPU_MEMORY_TOTAL = _gpu_gauge("memory_total_bytes", "All memory.", "DCGM_FI_DEV_FB_TOTAL (MiB)")
GPU_TEMPERATURE = _gpu_gauge("temperature_celsius", "Temperature of the GPU.", "DCGM_FI_DEV_GPU_TEMP")
GPU_MEMORY_TEMPERATURE = _gpu_gauge(
    "memory_temperature_celsius", "Temperature of the memory.", "DCGM_FI_DEV_MEMORY_TEMP"
)
GPU_POWER = _gpu_gauge("power_watts", "Power draw.", "DCGM_FI_DEV_POWER_USAGE")
GPU_POWER_LIMIT = _gpu_gauge("power_limit_watts", "Enforced power limit.", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT")
GPU_ENERGY = _gpu_counter(
    "energy_joules", "Energy since the driver was loaded.", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION (mJ)"
)
GPU_SM_CLOCK = _gpu_gauge("sm_clock_hertz", "Clock of the multiprocessors.", "DCGM_FI_DEV_SM_CLOCK (MHz)")
GPU_SM_CLOCK_MAX = _gpu_gauge(
    "sm_clock_max_hertz", "Highest clock of the multiprocessors.", "DCGM_FI_DEV_MAX_SM_CLOCK (MHz)"
)
GPU_MEMORY_CLOCK = _gpu_gauge("memory_clock_hertz", "Clock of the memory.", "DCGM_FI_DEV_MEM_CLOCK (MHz)")
GPU_CLOCK_EVENT = _gpu_gauge(
    "clock_event",
    "1 while this reason slows the clocks: sw_thermal, hw_thermal, power_cap, power_brake or hw_slowdown.",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS (bits)",
    "reason",
)
GPU_ECC_ERRORS = _gpu_counter(
    "ecc_errors",
    "Memory errors: `kind` single_bit (corrected) or double_bit, `counter` volatile (since the driver was "
    "loaded) or aggregate.",
    "DCGM_FI_DEV_ECC_{SBE,DBE}_{VOL,AGG}_TOTAL",
    "kind counter",
)
GPU_REMAPPED_ROWS = _gpu_gauge(
    "remapped_rows",
    "Remapped memory rows: `cause` correctable or uncorrectable.",
    "DCGM_FI_DEV_{CORRECTABLE,UNCORRECTABLE}_REMAPPED_ROWS",
    "cause",
)
GPU_REMAP_PENDING = _gpu_gauge(
    "row_remap_pending",
    "1 while rows wait to be remapped at the next reset.",
    "DCGM_FI_DEV_ROW_REMAP_PENDING",
)
GPU_REMAP_FAILURE = _gpu_gauge(
    "row_remap_failure",
    "1 after a row could not be remapped: replace the GPU.",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
)
GPU_XID_ERRORS = _gpu_counter(
    "xid_errors", "XID events of the driver, by number.", "DCGM_FI_DEV_XID_ERRORS (last number)", "xid"
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
# One of each for the process, because what they count happens in many places. Every registry exports them.
THROTTLE_COUNTER = THROTTLES.live_counter(None)
TASK_FAILURE_COUNTER = TASK_FAILURES.live_counter(None)


def describe_metrics() -> list[dict[str, object]]:
    """Every metric as JSON, for the page of a server."""
    return [asdict(metric) for metric in METRICS]


def count_throttle(service: str) -> None:
    """Count one call that a service throttled. `service` is from a closed set: it becomes a label."""
    THROTTLE_COUNTER.labels(service).inc()
