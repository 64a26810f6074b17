"""The spans of a worker: the wait in the queue, each attempt, and its stages with the readings of the GPU."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from filmgate.jobs import Lease, Stage, new_trace_id
from filmgate.telemetry.nvml import GpuSample
from filmgate.telemetry.trace_context import TraceContext, trace_of
from filmgate.telemetry.tracing import Attribute, Span, Tracer, traced
from filmgate.telemetry.untraced import NO_TRACER

# A stage that is shorter than the interval of the readings shows the last one before its end.
_NEAR_SECONDS = 10.0
_MAX_READINGS = 3600
_ON_GPU = frozenset({Stage.LOAD, Stage.TEXT, Stage.DENOISE, Stage.DECODE})


class GpuReadings:
    """Recent readings of the GPU of this process; empty on a CPU."""

    def __init__(self, uuid: str | None = None) -> None:
        self.uuid = uuid
        self._readings: deque[tuple[float, GpuSample]] = deque(maxlen=_MAX_READINGS)

    def add(self, sample: GpuSample, at: float) -> None:
        self._readings.append((at, sample))

    def between(self, start: float, stop: float) -> Sequence[GpuSample]:
        """The readings of this interval, in Unix seconds. Does not wait for the GPU."""
        return [sample for at, sample in list(self._readings) if start <= at <= stop]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the start of a worker, in Unix seconds."""

    name: str
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class StartUp:
    """What a worker does before it can lease jobs. A job that waited for it shows it in its trace."""

    phases: list[Phase] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.time()
        yield
        self.phases.append(Phase(name, start, time.time()))


@dataclass(frozen=True, slots=True)
class WorkerTracing:
    """What all attempts of a worker share. `instance_id` is the EC2 instance or the host."""

    tracer: Tracer = NO_TRACER
    instance_id: str | None = None
    gpu: GpuReadings = field(default_factory=GpuReadings)
    start_up: StartUp = field(default_factory=StartUp)

    def begin(self, lease: Lease) -> "AttemptTrace":
        """Start the span of an attempt, after the span of the wait before it."""
        job, now = lease.job, time.time()
        leased_at = min(job.started_at or now, now)
        since = leased_at - lease.waited_seconds
        waited = self.tracer.start("queue wait", trace_of(job), at=since)
        waited.set(job_id=job.id, tenant_id=job.tenant_id, attempt=job.attempt, route=job.route)
        for phase in self.start_up.phases:
            if phase.stop > since:
                span = self.tracer.start(phase.name, waited.context, at=phase.start)
                span.set(model=job.spec.model, worker_id=lease.worker_id)
                span.end(at=phase.stop)
        waited.end(at=leased_at)
        return AttemptTrace(self, lease)

    def trace_start(self, worker_id: str) -> None:
        """Export the start of the worker as a separate trace. Call it when the worker is ready."""
        phases = self.start_up.phases
        root = self.tracer.start("worker start", TraceContext(new_trace_id()), at=phases[0].start)
        root.set(worker_id=worker_id, instance_id=self.instance_id, gpu_uuid=self.gpu.uuid)
        for phase in phases:
            self.tracer.start(phase.name, root.context, at=phase.start).end(at=phase.stop)
        root.end()


class AttemptTrace:
    """The span of one attempt. Its parent is the span that accepted the job, even for later attempts."""

    def __init__(self, tracing: WorkerTracing, lease: Lease) -> None:
        self._tracing = tracing
        self._span: Span = tracing.tracer.start("attempt", trace_of(lease.job), kind="consumer")
        self._facts = _describe(lease)
        self._span.set(
            **self._facts,
            worker_id=lease.worker_id,
            instance_id=tracing.instance_id,
            device=lease.job.device,
            gpu_uuid=tracing.gpu.uuid,
            width=lease.job.spec.width,
            height=lease.job.spec.height,
        )

    @property
    def context(self) -> TraceContext:
        return self._span.context

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[Span]:
        """A span around the block, which must be within the `context` of this attempt."""
        return traced(self._tracing.tracer, name, **attributes)

    def record(
        self,
        name: str,
        start: float,
        stop: float,
        error: BaseException | None = None,
        **attributes: Attribute,
    ) -> None:
        """A span that has ended. Times are on the monotonic clock."""
        if not self._tracing.tracer.is_on:
            return
        offset = time.time() - time.monotonic()
        span = self._tracing.tracer.start(name, self.context, at=start + offset)
        span.set(**self._facts, **attributes)
        if name in _ON_GPU:
            gpu = self._tracing.gpu
            near = gpu.between(start + offset - _NEAR_SECONDS, stop + offset)
            _set_gpu(span, gpu.between(start + offset, stop + offset) or near[-1:])
        span.end(error, at=stop + offset)

    def end(self, error: BaseException | None = None) -> None:
        """End the attempt."""
        self._span.end(error)


def _describe(lease: Lease) -> dict[str, Attribute]:
    job, spec = lease.job, lease.job.spec
    return {
        "job_id": job.id,
        "tenant_id": job.tenant_id,
        "attempt": job.attempt,
        "route": job.route,
        "model": spec.model,
        "version": job.version or None,
        "frames": spec.frames,
        "steps": spec.steps,
    }


def _set_gpu(span: Span, samples: Sequence[GpuSample]) -> None:
    """Means over the interval; the highest temperature and memory. 0 for what the GPU does not report."""
    if not samples:
        return
    span.set(
        gpu_utilization=round(100 * fmean(sample.utilization or 0.0 for sample in samples), 1),
        gpu_sm_clock_mhz=round(fmean(sample.sm_clock_hertz or 0.0 for sample in samples) / 1e6, 1),
        gpu_power_watts=round(fmean(sample.power_watts or 0.0 for sample in samples), 1),
        gpu_temperature=max(sample.temperature_celsius or 0.0 for sample in samples),
        gpu_memory_bytes=max(sample.memory_used_bytes or 0 for sample in samples),
    )
