"""Admission: turns a request into a durable job, or raises the reason why not.

The steps of `accept`: find a duplicate -> limits -> screening -> estimate -> route and back-pressure -> read
the image -> store it -> enqueue.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from filmgate.admission.estimates import Estimate, Estimator, to_estimate
from filmgate.admission.screening import RuleSet, Screener
from filmgate.admission.sources import Origin, Sources
from filmgate.audit.log import AuditLog
from filmgate.audit.records import Action, Actor, Entry
from filmgate.errors import (
    BacklogGrown,
    FilmgateError,
    ModelNotServed,
    Overloaded,
    PromptRejected,
    QueueUnavailable,
    StoreFull,
)
from filmgate.jobs import (
    Idempotency,
    Job,
    Route,
    Screening,
    ScreeningAction,
    StageSeconds,
    Ticket,
    TraceId,
    VideoSpec,
)
from filmgate.models.adapters import AdapterRegistry
from filmgate.models.cards import ModelRegistry
from filmgate.models.requests import VideoRequest, check_request, inherit, parse_sizes
from filmgate.scheduling.acceptance import BodyDigests
from filmgate.scheduling.base import JobQueue, JobReader
from filmgate.scheduling.forecast import Forecast, LiveForecast, Outlook
from filmgate.scheduling.router import Router
from filmgate.scheduling.routes import ON_GPU
from filmgate.settings import AdmissionSettings, SloSettings
from filmgate.settings.wording import parse_names
from filmgate.slo.objectives import DEFAULT_CLASS, parse_objectives
from filmgate.store.base import UPLOAD_PART, ObjectName, ObjectStore
from filmgate.telemetry.logs import Log
from filmgate.telemetry.trace_context import exported_span
from filmgate.telemetry.tracing import Tracer, traced
from filmgate.tenants.base import Tenant

log = Log("admission")

# How often a request is routed by a new forecast, if the queue grew before it was enqueued.
_MAX_FORECASTS = 3
# The forecast and the database add up the backlog in different orders.
_ROUNDING_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Who sends the request, how its duplicates are recognised, and its trace."""

    tenant: Tenant
    idempotency: Idempotency
    trace_id: TraceId
    actor: Actor


@dataclass(frozen=True, slots=True)
class AdmissionServices:
    """What admission reads and writes. `router` is None where no provider is configured.

    `read_starting` returns the models that workers of this process are loading.
    """

    queue: JobQueue
    reader: JobReader
    store: ObjectStore
    forecast: LiveForecast
    models: ModelRegistry
    screener: Screener
    digests: BodyDigests
    router: Router | None
    audit: AuditLog
    read_starting: Callable[[], frozenset[str]]
    tracer: Tracer
    adapters: AdapterRegistry


class Admission:
    """Decides which requests become jobs."""

    def __init__(
        self, services: AdmissionServices, settings: AdmissionSettings, slo: SloSettings, codec: str
    ) -> None:
        self._services = services
        self._objectives = parse_objectives(slo, settings.slo_seconds)
        self._settings = settings
        self._codec = codec
        self._estimator = Estimator(services.reader)
        self._sources = Sources(services.reader, services.store, settings)
        parse_sizes(settings.scaled_sizes, "admission.scaled_sizes")  # wrong settings are an error at start
        self._scale_from_zero = parse_names(settings.scale_from_zero)

    @property
    def rules(self) -> RuleSet:
        """The screening rules."""
        return self._services.screener.rules

    @property
    def slo_seconds(self) -> float:
        """The deadline of a job, in seconds from acceptance."""
        return self._settings.slo_seconds

    def accept(self, context: RequestContext, request: VideoRequest) -> Job:
        """Create the job of a request; durable when this returns. A duplicate returns the existing job.

        Raises UsageError subclasses, ModelNotServed and StoreFull; then nothing was stored.
        """
        services, tenant_id = self._services, context.tenant.id
        with traced(services.tracer, "admit", tenant_id=tenant_id) as span:
            job = services.queue.find_duplicate(tenant_id, context.idempotency)
            job = job or self._create(context, request)
            span.set(job_id=job.id, model=job.spec.model, route=job.route, frames=job.spec.frames)
            span.set(steps=job.spec.steps, width=job.spec.width, height=job.spec.height)
            return job

    def _create(self, context: RequestContext, request: VideoRequest) -> Job:
        request, origin, ticket = self._prepare(context, request)
        if self._services.store.is_nearly_full():
            raise StoreFull("the store has no space for new clips")
        # Routed before the image is decoded: a rejected request costs little.
        routed = self._route(context, ticket, self._forecast_for(context.tenant))
        image = self._sources.read_image(request, origin)
        job = self._enqueue(context, routed, image)
        log.info(
            "job accepted",
            job_id=job.id,
            tenant_id=job.tenant_id,
            trace_id=job.trace_id,
            model=job.spec.model,
            route=job.route,
        )
        return job

    def estimate(self, context: RequestContext, request: VideoRequest) -> Estimate:
        """What this request would take and when it would be ready, without creating a job.

        Raises what `accept` raises, except for quotas, disk space and the content of images.
        """
        request, _origin, ticket = self._prepare(context, request)
        forecast = self._forecast_for(context.tenant)
        routed = self._route(context, ticket, forecast)
        return to_estimate(routed, forecast.outlook(ticket))

    def _forecast_for(self, tenant: Tenant) -> Forecast:
        """The current forecast; a new one where the tenant became dedicated, or shared, since it was made."""
        forecast = self._services.forecast.get()
        is_current = (tenant.id in forecast.snapshot.dedicated) is tenant.is_dedicated
        return forecast if is_current else self._services.forecast.refresh()

    def _prepare(self, context: RequestContext, request: VideoRequest) -> tuple[VideoRequest, Origin, Ticket]:
        """The request with what it inherits, the videos it uses, and its ticket without a route."""
        models = self._services.models
        origin = self._sources.find(context.tenant.id, request)
        if origin.clip is not None:
            inherited = origin.clip.spec
            request = inherit(request, inherited, models.find(inherited.model).limits)
        request = self._services.adapters.resolve(
            request, context.tenant.id, lambda name: models.find(name).name
        )
        card = models.find(request.model)
        spec = check_request(request, card.name, card.limits, self._settings, self._codec)
        screening = self._screen(context, spec)
        objective = self._objectives.of(context.tenant, spec)
        ticket = Ticket(
            tenant_id=context.tenant.id,
            spec=replace(spec, source=origin.source),
            predicted=self._estimator.estimate(spec, card),
            slo_seconds=objective.seconds,
            slo_class=None if objective.name == DEFAULT_CLASS else objective.name,
            slo_target=objective.target,
            idempotency=context.idempotency,
            share=context.tenant.share,
            screening=screening,
            trace_id=context.trace_id,
            span_id=exported_span(),
        )
        return request, origin, ticket

    def _screen(self, context: RequestContext, spec: VideoSpec) -> Screening:
        texts = [text for text in (spec.prompt, spec.negative_prompt) if text]
        with traced(self._services.tracer, "screen") as span:
            screening = self._services.screener.screen(texts, context.tenant.screening)
            span.set(action=screening.action)
        if screening.action is ScreeningAction.ALLOW:
            return screening
        digest = self._services.digests.digest_prompt(context.tenant.id, spec.prompt)
        log.info(
            "prompt screened",
            tenant_id=context.tenant.id,
            trace_id=context.trace_id,
            action=screening.action,
            rule=",".join(screening.rules),
            prompt_digest=digest,
        )
        if screening.action is ScreeningAction.FLAG:
            return screening
        details = {
            "prompt_hmac": digest,
            "screening": screening.action.value,
            "rules": list(screening.rules),
            "model": spec.model,
            "trace": context.trace_id,
        }
        rejected = Entry(Action.REJECTED, None, context.actor, details=details)
        self._services.audit.record(context.tenant.id, rejected)
        categories, rules = ", ".join(screening.categories), ", ".join(screening.rules)
        raise PromptRejected(
            f"the prompt was rejected for {categories} (rule {rules}); change the prompt",
            option="prompt",
        )

    def _route(self, context: RequestContext, ticket: Ticket, forecast: Forecast) -> Ticket:
        """The ticket with its route. A job for local GPUs must meet the promise. Raises Overloaded."""
        spec, router, limit = ticket.spec, self._services.router, None
        with traced(self._services.tracer, "route") as span:
            outlook, choice = forecast.outlook(ticket), ON_GPU
            if router is not None:
                choice = router.choose(ticket, context.tenant.managed, outlook.slot, forecast)
            if choice.route is Route.GPU:
                if outlook.workers == 0:
                    self._require_worker(context.tenant, ticket)
                limit = self._max_backlog(ticket, outlook)
            reason = choice.routing.reason
            if choice is not ON_GPU:
                trace_id = context.trace_id
                log.info("routed", trace_id=trace_id, route=choice.route, reason=reason, model=spec.model)
            span.set(route=choice.route, reason=reason)
            return replace(ticket, route=choice.route, routing=choice.routing, max_backlog_seconds=limit)

    def _require_worker(self, tenant: Tenant, ticket: Ticket) -> None:
        """Raises ModelNotServed if no worker will render the job."""
        model = ticket.spec.model
        # The embedded worker, which may be starting, is a shared one.
        is_starting = model in self._services.read_starting() and not tenant.is_dedicated
        if not self._scale_from_zero.isdisjoint({model, "*"}) or is_starting:
            return
        # The forecast may be older than the first heartbeat of a worker. A new one is made only if there is a
        # worker: with a long queue, one per rejected request would take all of a CPU.
        alive = self._services.reader.backlog().workers
        is_announced = any(worker.route is Route.GPU and model in worker.models for worker in alive)
        if not is_announced or self._services.forecast.refresh().outlook(ticket).workers == 0:
            raise _not_served(tenant, model)

    def _max_backlog(self, ticket: Ticket, outlook: Outlook) -> float:
        """The most queued work at which this job still meets the promise. Raises Overloaded.

        A job that starts immediately is accepted however long it takes, unless another one is enqueued first.
        """
        predicted, wait = ticket.predicted, outlook.slot.starts_in
        workers, backlog = max(outlook.workers, 1), outlook.backlog_seconds
        if math.isinf(wait):
            wait = backlog / workers
        spare = self._settings.promise_seconds - wait - predicted.work_seconds
        if spare < 0 < wait:
            raise _overloaded(wait, predicted, self._settings.promise_seconds)
        return backlog + max(spare, 0.0) * workers + _ROUNDING_SECONDS

    def _enqueue(self, context: RequestContext, ticket: Ticket, image: Iterable[bytes] | None) -> Job:
        """Store the upload and enqueue the ticket, both or neither."""
        if image is None:
            return self._enqueue_in_time(context, ticket)
        self._services.store.put(ObjectName(ticket.tenant_id, ticket.job_id, UPLOAD_PART), image)
        try:
            job = self._enqueue_in_time(context, ticket)
        except FilmgateError as exc:
            # After a database error the job may exist: retention decides later.
            if not isinstance(exc, QueueUnavailable):
                self._delete_upload(ticket)
            raise
        if job.id != ticket.job_id:
            self._delete_upload(ticket)
        return job

    def _delete_upload(self, ticket: Ticket) -> None:
        """Best effort, so that the client gets the result of its request. Orphans are swept later."""
        try:
            self._services.store.delete(ticket.tenant_id, ticket.job_id)
        except FilmgateError as exc:
            log.warning("an upload could not be deleted", error=exc, job_id=ticket.job_id)

    def _enqueue_in_time(self, context: RequestContext, ticket: Ticket) -> Job:
        """Enqueue the ticket. If the queue has grown since its forecast, route it by a new one."""
        for _ in range(_MAX_FORECASTS):
            try:
                return self._services.queue.enqueue(ticket, context.actor)
            except BacklogGrown:
                ticket = self._route(context, ticket, self._services.forecast.refresh())
        return self._services.queue.enqueue(ticket, context.actor)


def _not_served(tenant: Tenant, model: str) -> ModelNotServed:
    option, whom = (f" --tenant {tenant.id}", " for this tenant") if tenant.is_dedicated else ("", "")
    return ModelNotServed(
        f"no worker serves {model}{whom}; start one with `filmgate worker --model {model}{option}`, or list "
        "it in admission.scale_from_zero to queue jobs until one starts"
    )


def _overloaded(wait: float, predicted: StageSeconds, promise_seconds: float) -> Overloaded:
    ready = wait + predicted.work_seconds
    retry_after = max(1.0, math.ceil(min(ready - promise_seconds, wait)))
    return Overloaded(
        f"the queue is full: this video would be ready in {ready:.0f} s and the limit is "
        f"{promise_seconds:.0f} s; try again in {retry_after:.0f} s",
        retry_after_seconds=retry_after,
    )
