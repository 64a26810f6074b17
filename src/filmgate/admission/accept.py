"""The gate: one request in, one ticket out, or the reason why not. Nothing is written here."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from filmgate.admission.estimates import Estimator
from filmgate.admission.screening import Screener, open_rules
from filmgate.admission.uploads.fetch import FetchLimits, fetch
from filmgate.admission.uploads.images import Picture, clean_image
from filmgate.errors import AddressRefused, InvalidField, JobActive, PromptRejected, StoreFull
from filmgate.jobs import (
    Idempotency,
    Job,
    JobState,
    Route,
    Screening,
    ScreeningAction,
    Source,
    SourceKind,
    StageSeconds,
    TenantId,
    Ticket,
    TraceId,
    VideoSpec,
)
from filmgate.models.cards import ModelCard, ModelRegistry, open_registry
from filmgate.models.requests import VideoRequest, to_spec
from filmgate.scheduling.base import Backlog, JobBook, JobQueue
from filmgate.scheduling.pressure import Demand, check_promise, place_in_queue, wait_seconds
from filmgate.scheduling.router import Arrival, Router
from filmgate.scheduling.routes import AT_HOME, Choice
from filmgate.scheduling.workers import Roster
from filmgate.settings import AdmissionSettings
from filmgate.store.base import UPLOAD_PART, ObjectStore, Room
from filmgate.telemetry.logs import Log
from filmgate.tenants.base import Tenant, TenantRegistry

log = Log("admission")

Value = TypeVar("Value")
FRESH_SECONDS = 0.25
LONG_QUEUE = 100
ROSTER_SECONDS = 2.0


class Glance(Generic[Value]):
    """A value that may be a moment old, so that a burst of requests reads it once."""

    def __init__(self, read: Callable[[], Value], seconds: float = FRESH_SECONDS) -> None:
        self._read = read
        self._seconds = seconds
        self._lock = threading.Lock()
        self._seen: tuple[float, Value] | None = None

    def get(self) -> Value:
        with self._lock:
            now = time.monotonic()
            if self._seen is None or now - self._seen[0] > self._seconds:
                self._seen = (now, self._read())
            return self._seen[1]


@dataclass(frozen=True, slots=True)
class Visit:
    """Who asks, and how to recognise the same request again."""

    tenant: Tenant
    idempotency: Idempotency
    trace_id: TraceId


@dataclass(frozen=True, slots=True)
class Admitted:
    """A ticket, and the picture that must be in the store before the queue hears of it."""

    ticket: Ticket
    picture: Picture | None = None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The stations the gate looks at, and only looks at."""

    queue: JobQueue
    book: JobBook
    store: ObjectStore
    tenants: TenantRegistry
    router: Router | None = None  # none: everything stays home


class Gate:
    """Decides what may enter."""

    def __init__(
        self, shelf: ModelRegistry, screener: Screener, neighbours: Neighbours, settings: AdmissionSettings
    ) -> None:
        self.shelf = shelf
        self.router = neighbours.router
        self._screener = screener
        self._book = neighbours.book
        self._settings = settings
        self._estimator = Estimator(neighbours.book)
        self._backlog: Glance[Backlog] = Glance(neighbours.queue.backlog)
        self._room: Glance[Room] = Glance(neighbours.store.room, seconds=1.0)
        self._weights: Glance[dict[TenantId, float]] = Glance(
            lambda: {tenant.id: tenant.share.weight for tenant in neighbours.tenants.tenants()}, seconds=5.0
        )
        hosts = (host.strip().lower() for host in settings.fetch_hosts.split(","))
        self._fetch_limits = FetchLimits(
            settings.fetch_seconds, settings.image_max_bytes, hosts=frozenset(host for host in hosts if host)
        )

    def admit(self, visit: Visit, request: VideoRequest) -> Admitted:
        """The ticket of a request. Raises UsageError subclasses and StoreFull; changes nothing."""
        source = self._source(visit.tenant.id, request)
        if source is not None:
            request = self._inherit(request, source)
        card = self.shelf.find(request.model)
        spec = to_spec(request, card.name, card.limits, self._settings.prompt_max_chars)
        screening = self._screen(visit, spec)
        predicted = self._estimator.estimate(spec, card)
        if self._room.get().is_low:
            raise StoreFull("the store has no room for new clips")
        choice = self._choose(visit, request, spec, predicted)
        picture = self._picture(request)
        ticket = Ticket(
            tenant_id=visit.tenant.id,
            spec=replace(spec, source=_start(request, source, picture)),
            predicted=predicted,
            slo_seconds=self._settings.slo_seconds,
            idempotency=visit.idempotency,
            share=visit.tenant.share,
            route=choice.route,
            routing=choice.routing,
            screening=screening,
            trace_id=visit.trace_id,
        )
        return Admitted(ticket, picture)

    def wait_seconds(self, tenant: Tenant, predicted: StageSeconds) -> float:
        """How long a job of this size would wait if it came now."""
        demand = Demand(tenant.id, tenant.share.weight, predicted.gpu_seconds, self._weights.get())
        return wait_seconds(self._backlog.get(), demand, self._settings.gpus)

    def _choose(
        self, visit: Visit, request: VideoRequest, spec: VideoSpec, predicted: StageSeconds
    ) -> Choice:
        """The route. Only what stays home is held to the promise: a provider may take what we cannot."""
        wait, choice = self.wait_seconds(visit.tenant, predicted), AT_HOME
        if self.router is not None:
            kind = request.source_kind
            shaped = replace(spec, source=Source(kind) if kind else None)
            arrival = Arrival(visit.tenant.managed, shaped, predicted, self._settings.slo_seconds, wait)
            choice = self.router.choose(arrival, self._backlog.get())
        if choice.route is Route.GPU:
            check_promise(wait, predicted, self._settings.promise_seconds)
        if choice is not AT_HOME:
            reason = choice.routing.reason
            log.info("routed", trace_id=visit.trace_id, route=choice.route, reason=reason, model=spec.model)
        return choice

    def quick_place(self, tenant: Tenant, job: Job) -> int | None:
        """About where a job that has just joined a long queue stands; None where the queue is short enough
        to be counted exactly.
        """
        backlog = self._backlog.get()
        if backlog.queued_jobs < LONG_QUEUE:
            return None
        weight, seconds = tenant.share.weight, job.predicted.gpu_seconds
        demand = Demand(tenant.id, weight, seconds, self._weights.get(), job.route)
        return place_in_queue(backlog, demand, job.spec.model)

    def eta_seconds(self, job: Job, position: int | None, now: float) -> float | None:
        """Seconds until the job is finished, None once it is."""
        if job.state.is_final:
            return None
        whole = self._work_seconds(job)
        if job.has_started and job.started_at is not None and job.progress is not None:
            elapsed, fraction = now - job.started_at, job.progress.fraction
            # The job's own pace tells more than the prediction once a fifth of it is done.
            pace = elapsed / fraction if fraction >= 0.2 else max(whole, elapsed)
            return max(pace - elapsed, 0.0)
        if job.route is Route.MANAGED:
            return whole
        backlog = self._backlog.get()
        loads = [load for load in backlog.loads if load.route is job.route]
        jobs = max(sum(load.jobs for load in loads if load.state is JobState.QUEUED), 1)
        ahead = min((position or 1) - 1, jobs) / jobs * backlog.queued_gpu_seconds(job.route)
        running = sum(load.gpu_seconds for load in loads if load.state is JobState.RUNNING) / 2
        return (ahead + running) / self._settings.gpus + whole

    def _work_seconds(self, job: Job) -> float:
        """What the job takes once it starts, here or at the provider."""
        here = job.predicted.load + job.predicted.gpu_seconds + job.predicted.upload
        if job.route is Route.GPU or self.router is None:
            return here
        return self.router.expect_seconds(job.spec) or here

    def _source(self, tenant_id: TenantId, request: VideoRequest) -> Job | None:
        """The finished job that a remix, an edit or an extension starts from."""
        if request.source_id is None:
            return None
        source = self._book.find(tenant_id, request.source_id)
        if source.state is JobState.FAILED:
            raise InvalidField("the source video has failed: it has no clip", option="video")
        if source.state is not JobState.COMPLETED:
            raise JobActive("the source video is not finished", option="video")
        return source

    def _inherit(self, request: VideoRequest, source: Job) -> VideoRequest:
        """What starts from a clip keeps its shape."""
        frames = self.shelf.find(source.spec.model).limits.frames
        length = frames.seconds(source.spec.frames, source.spec.fps)
        return replace(
            request,
            model=source.spec.model,
            size=source.spec.size,
            fps=source.spec.fps,
            seconds=length if request.seconds is None else request.seconds,
            steps=source.spec.steps,
            seed=source.spec.seed,
            guidance=source.spec.guidance,
        )

    def _screen(self, visit: Visit, spec: VideoSpec) -> Screening:
        texts = [text for text in (spec.prompt, spec.negative_prompt) if text]
        screening = self._screener.screen(texts, visit.tenant.screening)
        if screening.action is not ScreeningAction.ALLOW:
            log.info(
                "prompt screened",
                tenant_id=visit.tenant.id,
                trace_id=visit.trace_id,
                action=screening.action,
                rule=",".join(screening.rules),
                prompt_sha256=hashlib.sha256(spec.prompt.encode()).hexdigest(),
            )
        if screening.action is ScreeningAction.REJECT:
            rules = ", ".join(screening.rules)
            raise PromptRejected(f"the prompt is refused by {rules}", option="prompt", rules=screening.rules)
        return screening

    def _picture(self, request: VideoRequest) -> Picture | None:
        upload = request.image
        if request.image_url is not None:
            if not self._settings.fetch:
                raise AddressRefused("this service fetches no URLs", option="input_reference.image_url")
            upload = fetch(request.image_url, self._fetch_limits)
        return clean_image(upload, self._settings) if upload is not None else None


def _start(request: VideoRequest, source: Job | None, picture: Picture | None) -> Source | None:
    """Where the worker finds what the clip starts from: an upload of this job, or another job's clip."""
    if picture is not None:
        return Source(SourceKind.IMAGE, part=UPLOAD_PART, media_type=picture.media_type)
    if source is None or source.clip is None or request.verb is None:
        return None
    if request.verb is SourceKind.REMIX:
        # A new prompt on the same noise: what the clip was made from, not the clip, is taken over.
        return Source(SourceKind.REMIX, source.id)
    return Source(request.verb, source.id, source.clip.part, source.clip.media_type)


def open_gate(neighbours: Neighbours, roster: Roster, settings: AdmissionSettings) -> Gate:
    """The gate of these settings. Raises SettingsError for a bad model or rule file."""
    brought: Glance[Sequence[ModelCard]] = Glance(roster.cards, seconds=ROSTER_SECONDS)
    shelf = open_registry(settings.default_model, settings.models_file, brought.get)
    return Gate(shelf, Screener(open_rules(settings.rules_file)), neighbours, settings)
