"""The types that all packages share: specs, tickets, jobs, leases and their states."""

import math
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, NewType

from filmgate.errors import FilmgateError, InvalidField
from filmgate.jobs.routing import DEFAULT_ROUTING
from filmgate.jobs.routing import ManagedPolicy as ManagedPolicy
from filmgate.jobs.routing import Route as Route
from filmgate.jobs.routing import RouteReason as RouteReason
from filmgate.jobs.routing import Routing as Routing

JobId = NewType("JobId", str)
TenantId = NewType("TenantId", str)
TraceId = NewType("TraceId", str)
SpanId = NewType("SpanId", str)
WorkerId = NewType("WorkerId", str)
InvocationId = NewType("InvocationId", str)  # a provider's id of a job

JOB_ID_PATTERN = re.compile(r"video_[0-9a-f]{32}")
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})", re.IGNORECASE | re.ASCII)
TENANT_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def new_job_id() -> JobId:
    """128 random bits: an id reveals nothing about any other."""
    return JobId(f"video_{secrets.token_hex(16)}")


def new_trace_id() -> TraceId:
    """A W3C trace id in the form that AWS X-Ray requires: it starts with the time in seconds."""
    return TraceId(f"{int(time.time()):08x}{secrets.token_hex(12)}")


class JobState(StrEnum):
    """The state of a job. A cancelled job is FAILED with Reason.CANCELLED."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.FAILED}),
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.COMPLETED, JobState.FAILED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
}


class Stage(StrEnum):
    """The stage a running job is in."""

    LOAD = "load"
    TEXT = "text"
    DENOISE = "denoise"
    DECODE = "decode"
    UPLOAD = "upload"


class StillKind(StrEnum):
    """What a still of a clip is for."""

    PREVIEW = "preview"  # shown while the clip is rendered
    THUMBNAIL = "thumbnail"  # stands for the finished clip
    SPRITESHEET = "spritesheet"  # shown while a viewer scrubs


class Reason(StrEnum):
    """Why an attempt or a job failed. A closed set: it labels metrics."""

    CANCELLED = "cancelled"
    WORKER_LOST = "worker_lost"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE_UNUSABLE = "device_unusable"
    MODEL_UNUSABLE = "model_unusable"
    DECODE_FAILED = "decode_failed"
    ENCODE_FAILED = "encode_failed"
    STORE_FAILED = "store_failed"
    SOURCE_MISSING = "source_missing"
    KEY_REFUSED = "key_refused"
    PROVIDER_FAILED = "provider_failed"
    INVALID_REQUEST = "invalid_request"
    INTERNAL = "internal_error"

    @classmethod
    def of(cls, error: BaseException) -> "Reason":
        """The reason of an error."""
        code = error.code if isinstance(error, FilmgateError) else ""
        return _REASONS.get(code, cls(code))

    @classmethod
    def _missing_(cls, _value: object) -> "Reason":
        """A newer version may store reasons that this one does not know."""
        return cls.INTERNAL


_PROVIDER_CODES = ("provider_throttled", "provider_refused", "provider_unusable", "provider_cannot")
_REASONS = {
    "model_unavailable": Reason.MODEL_UNUSABLE,
    "keyring_unavailable": Reason.KEY_REFUSED,
    "keyring_forbidden": Reason.KEY_REFUSED,
    "write_failed": Reason.STORE_FAILED,
    "storage_full": Reason.STORE_FAILED,
    "storage_unavailable": Reason.STORE_FAILED,
    "storage_forbidden": Reason.STORE_FAILED,
    "object_corrupt": Reason.STORE_FAILED,
    "object_not_found": Reason.SOURCE_MISSING,
    **dict.fromkeys(_PROVIDER_CODES, Reason.PROVIDER_FAILED),
}


class SourceKind(StrEnum):
    """What a clip starts from."""

    IMAGE = "image"
    REMIX = "remix"
    EDIT = "edit"
    EXTEND = "extend"


@dataclass(frozen=True, slots=True)
class Source:
    """The object a clip starts from: an image, which is `part` of this job, or a clip, of `job_id`."""

    kind: SourceKind
    job_id: JobId | None = None
    part: str | None = None
    media_type: str | None = None


class Size(NamedTuple):
    """Width and height in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @classmethod
    def parse(cls, text: str, option: str = "size") -> "Size":
        """The size written as WIDTHxHEIGHT. Raises InvalidField naming `option`."""
        match = _SIZE.fullmatch(text)
        if match is None:
            raise InvalidField(f"{text[:20]!r} is not WIDTHxHEIGHT, such as 1280x720", option=option)
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class VideoSpec:
    """What will be rendered, complete: every default is filled in.

    `extra` holds fields of a newer version, so that an older process carries them instead of failing.
    """

    model: str
    prompt: str = field(repr=False)
    width: int
    height: int
    seconds: float
    fps: int
    steps: int | None = None
    seed: int | None = None
    guidance: float | None = None
    lora: str | None = None  # adapters with their scales: `lightning:1,style:0.8`
    quality: str = "full"
    pixel_format: str | None = None  # None: the service's
    negative_prompt: str | None = field(default=None, repr=False)
    source: Source | None = None
    scaled_to: Size | None = None  # the size of the clip, if the model renders another
    extra: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @property
    def frames(self) -> int:
        return max(1, math.floor(self.seconds * self.fps + 0.5))

    @property
    def size(self) -> Size:
        return Size(self.width, self.height)

    @property
    def clip_size(self) -> Size:
        return self.scaled_to or self.size

    @property
    def has_image(self) -> bool:
        """Whether a reference image is stored with the job."""
        if self.source is None:
            return False
        return self.source.kind is SourceKind.IMAGE or (self.source.media_type or "").startswith("image/")


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds per stage: predicted at admission, measured by the worker."""

    load: float = 0.0
    text: float = 0.0
    denoise: float = 0.0
    decode: float = 0.0
    upload: float = 0.0

    @property
    def gpu_seconds(self) -> float:
        """The stages that occupy the GPU for this job: what a tenant is charged for."""
        return self.text + self.denoise + self.decode

    @property
    def work_seconds(self) -> float:
        """From the start on a local GPU to the finished clip, with the model loaded."""
        return self.gpu_seconds + self.upload

    def fraction_done(self, stage: Stage, done: int, total: int) -> float:
        """Finished work over all work, weighted by seconds; at most 0.99 before publication."""
        before = 0.0
        for f in fields(self):
            seconds = float(getattr(self, f.name))
            if f.name == stage:
                before += seconds * (done / max(total, 1))
                break
            before += seconds
        whole = sum(float(getattr(self, f.name)) for f in fields(self))
        return min(before / whole, 0.99) if whole > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Work that the device has finished; `fraction` of the whole job is between 0 and 1."""

    stage: Stage
    done: int = 0
    total: int = 0
    fraction: float = 0.0


class ScreeningAction(StrEnum):
    """What a screening rule does to a request."""

    ALLOW = "allow"
    FLAG = "flag"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Screening:
    """The decision on a prompt, the rules that matched and the categories that decided; never the prompt."""

    action: ScreeningAction = ScreeningAction.ALLOW
    rules: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Idempotency:
    """How two requests for the same job are recognised.

    `key` is the client's Idempotency-Key. `body_digest` matches the retries of an SDK, which have no key but
    a retry header (`is_retry`).
    """

    body_digest: str
    key: str | None = None
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """A tenant's weight and quotas, enforced by the queue; None is unlimited."""

    weight: float = 1.0
    max_queued: int | None = None
    max_running: int | None = None
    max_gpu_seconds_per_day: float | None = None


DEFAULT_SLO_TARGET = 0.95


@dataclass(frozen=True, slots=True)
class Ticket:
    """An admitted request: everything the queue needs to accept it.

    `slo_class` is the class of clip that gave it its objective; None is the default class.
    `slo_target` is the share of such jobs that must be ready within `slo_seconds`.
    `max_backlog_seconds` is the most queued work on the GPU route at which the job still meets the promise.
    `span_id` is the parent of the spans that workers export; None: the trace is not exported.
    """

    tenant_id: TenantId
    spec: VideoSpec
    predicted: StageSeconds
    slo_seconds: float
    idempotency: Idempotency
    slo_class: str | None = None
    slo_target: float = DEFAULT_SLO_TARGET
    share: Share = Share()
    max_backlog_seconds: float | None = None
    route: Route = Route.GPU
    routing: Routing = DEFAULT_ROUTING
    screening: Screening = Screening()
    trace_id: TraceId = field(default_factory=new_trace_id)
    span_id: SpanId | None = None
    job_id: JobId = field(default_factory=new_job_id)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed: `reason` for programs, `message` for people. Never contains request text."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Clip:
    """The finished clip: the names of its parts in the store, its size and digest.

    `fragments` is the number of live fragments, so that a viewer can tell whether it received all of them.
    `reduced_to` names the rung of the memory ladder if GPU memory ran out: the frames are an approximation.
    """

    part: str
    size_bytes: int
    sha256: str
    media_type: str = "video/mp4"
    thumbnail: str | None = None
    spritesheet: str | None = None
    fragments: int | None = None
    reduced_to: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One accepted request: the unit that is queued, leased and billed. Times are Unix seconds."""

    id: JobId
    tenant_id: TenantId
    trace_id: TraceId
    spec: VideoSpec
    route: Route
    state: JobState
    revision: int
    created_at: float
    deadline_at: float
    predicted: StageSeconds
    screening: Screening
    slo_class: str | None = None
    slo_target: float = DEFAULT_SLO_TARGET
    span_id: SpanId | None = None
    routing: Routing = DEFAULT_ROUTING
    attempt: int = 0
    fence: int = 0
    progress: Progress | None = None
    is_cancelling: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    expires_at: float | None = None
    worker_id: WorkerId | None = None
    device: str | None = None
    version: str | None = None  # SHA-256 of the weights, or the provider's model
    measured: StageSeconds | None = None
    clip: Clip | None = None
    failure: Failure | None = None

    @property
    def has_started(self) -> bool:
        return self.state is JobState.RUNNING and self.progress is not None


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's time-limited right to a job. Every write carries the fence.

    `waited_seconds` is how long the job waited for this attempt, backoff included.
    """

    job: Job
    worker_id: WorkerId
    fence: int
    seconds: float
    waited_seconds: float = 0.0
