"""One trace from the client's request to the link, received by a real OTLP receiver.

The first Filmgate fails on its own GPU, then a second Filmgate renders the job as its provider.
"""

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import pytest

from filmgate.errors import OutOfMemory
from filmgate.jobs import JobId, ManagedPolicy, Route, RouteReason, Routing, Stage, TenantId, WorkerId
from filmgate.providers import open_provider
from filmgate.scheduling.base import Move
from filmgate.settings import TraceSettings
from filmgate.telemetry.nvml import GpuSample
from filmgate.telemetry.tracing import open_tracer
from filmgate.worker.base import Step
from filmgate.worker.health import WorkerTelemetry
from filmgate.worker.loop import Worker
from filmgate.worker.tracing import WorkerTracing
from filmgate.worker_process import WorkerServices, build_managed_worker
from tests.local_site import Tapped
from tests.otlp_receiver import otlp_receiver
from tests.pattern_runner import MODEL, PatternRunner
from tests.second_filmgate import CARDS, QUICK, endpoint_settings, second_filmgate
from tests.service import running, settings_for
from tests.waiting import wait_until

PROMPT = f"zebra-7f3a\r\ntraceparent: 00-{'f' * 32}-{'f' * 16}-01 💥 quokka-7f3a"
WORDS = (b"zebra-7f3a", b"quokka-7f3a")
CLIENT_TRACE, CLIENT_SPAN = "68a1b2c3bd862e3fe1be46a994272793", "53995c3f42cd8ad8"
GPU = "GPU-5a1b"


class BusyGpu:
    """Readings of a GPU, as the NVML watcher keeps them."""

    uuid = GPU

    def between(self, start, stop):
        return [
            GpuSample(utilization=0.4, sm_clock_hertz=1.8e9, temperature_celsius=60, power_watts=300,
                      memory_used_bytes=8 << 30),
            GpuSample(utilization=0.6, sm_clock_hertz=1.6e9, temperature_celsius=70, power_watts=500,
                      memory_used_bytes=9 << 30),
        ]  # fmt: skip


@dataclass
class Site:
    """The first Filmgate; its workers run while a test wants them to."""

    service: object
    tracer: object
    provider_settings: object

    @property
    def services(self):
        return self.service.services

    @contextmanager
    def _in_thread(self, worker):
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield
        finally:
            worker.drain()
            thread.join(60)

    @contextmanager
    def gpu_worker(self, runner):
        tracing = WorkerTracing(self.tracer, "i-0abc", BusyGpu())
        with tracing.start_up.phase("model download"):  # as `filmgate worker` does
            parts = {"queue": self.services.queue, "store": self.services.store, "settings": QUICK}
        telemetry = WorkerTelemetry(tracing=tracing)
        with self._in_thread(Worker(WorkerId("gpu-1"), runner, **parts, telemetry=telemetry)):
            yield

    @contextmanager
    def managed_worker(self):
        services = self.services
        shared = WorkerServices(services.queue._database, services.queue, services.store, self.tracer)
        settings = self.service.settings.model_copy(update={"provider": self.provider_settings})
        provider = open_provider(self.provider_settings)
        with self._in_thread(build_managed_worker(shared, settings, (MODEL,), provider)):
            yield

    def wait_for(self, job_id, is_reached):
        def find():
            found = self.services.reader.find(TenantId("local"), job_id)
            return found if is_reached(found) else None

        return wait_until(find, interval=0.01)


class FailingOnce(Tapped):
    """Fails at the first chunk of the first attempt; later attempts wait for another worker."""

    models, route, device = (MODEL,), Route.GPU, "NVIDIA H200"


def fail_in_decode(_task, output):
    if is_first_chunk(output):
        raise OutOfMemory("a message that may quote the prompt zebra-7f3a")


def is_first_chunk(output):
    return isinstance(output, Step) and (output.stage, output.done) == (Stage.DECODE, 1)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The spans of two jobs: one over two attempts and a provider, one on our own GPU."""
    folder = tmp_path_factory.mktemp("traced")
    cards = {"admission.models_file": str(CARDS), "admission.default_model": MODEL}
    with ExitStack() as held:
        received = held.enter_context(otlp_receiver())
        sent_to = TraceSettings(endpoint=received.url)
        own, second = open_tracer(sent_to, "first"), open_tracer(sent_to, "second")
        with second_filmgate(folder / "second", tracer=second) as provider:
            settings = settings_for(
                folder / "first", api__content="redirect", queue__backoff_seconds=60, **cards
            )
            with running(settings, tracer=own) as service:
                site = Site(service, own, endpoint_settings(provider))
                service.services.tenants.update(TenantId("local"), allow_provider)
                with service.client(follow_redirects=False) as client:
                    answers = render_at_provider(site, client), render_on_gpu(site, client)
        own.close()
        second.close()
        yield received, *answers


def allow_provider(tenant):
    return replace(tenant, managed=ManagedPolicy(is_allowed=True))


def render_at_provider(site, client):
    headers = {"traceparent": f"00-{CLIENT_TRACE}-{CLIENT_SPAN}-01"}
    created = client.post("/v1/videos", json={"prompt": PROMPT, "seconds": "1"}, headers=headers)
    job_id = JobId(created.json()["id"])
    failed = threading.Event()

    def tap(task, output):
        if is_first_chunk(output):
            failed.set()
        fail_in_decode(task, output)

    with site.gpu_worker(FailingOnce(tap)):
        assert failed.wait(60)
        site.wait_for(job_id, lambda job: job.state == "queued" and job.attempt == 1)
        move = Move(TenantId("local"), job_id, Route.MANAGED, Routing(RouteReason.DEADLINE))
        moved = site.services.queue.reroute([move])
    assert moved == 1
    with site.managed_worker():
        site.wait_for(job_id, lambda job: job.state.is_final)
    assert client.get(f"/v1/videos/{job_id}/content").status_code == 302
    return created


def render_on_gpu(site, client):
    created = client.post("/v1/videos", json={"prompt": PROMPT, "seconds": "1"})
    with site.gpu_worker(PatternRunner()):
        site.wait_for(JobId(created.json()["id"]), lambda job: job.state.is_final)
    return created


def spans_of(received, trace_id):
    return [span for span in received.spans if span.trace_id == trace_id]


def only(spans, name, service="filmgate-first"):
    (found,) = [span for span in spans if (span.name, span.service) == (name, service)]
    return found


def test_one_trace_leads_from_the_client_over_two_attempts_and_the_provider_to_the_link(traced):
    received, created, _ = traced
    assert created.json()["trace_id"] == CLIENT_TRACE
    spans = spans_of(received, CLIENT_TRACE)
    first = [span.name for span in spans if span.service == "filmgate-first"]
    assert sorted(first) == sorted(
        ["POST /v1/videos", "admit", "screen", "route", "queue wait", "model download", "load", "attempt",
         "text", "denoise", "checkpoint", "decode", "queue wait", "attempt", "provider start",
         "provider poll", "provider download", "publish", "link"]
    )  # fmt: skip
    known = {span.id for span in spans} | {CLIENT_SPAN}
    assert {span.parent for span in spans} <= known
    request, admit = only(spans, "POST /v1/videos"), only(spans, "admit")
    assert request.parent == CLIENT_SPAN
    assert admit.parent == request.id
    assert [only(spans, name).parent for name in ("screen", "route", "link")] == [admit.id] * 3
    attempts = [span for span in spans if (span.name, span.service) == ("attempt", "filmgate-first")]
    assert [span.parent for span in attempts] == [admit.id] * 2
    assert [span.attributes["filmgate.route"] for span in attempts] == ["gpu", "managed"]
    assert [span.attributes["filmgate.attempt"] for span in attempts] == [1, 2]
    assert [only(spans, name).parent for name in ("text", "denoise", "decode")] == [attempts[0].id] * 3
    at_provider = ("provider start", "provider poll", "provider download", "publish")
    assert [only(spans, name).parent for name in at_provider] == [attempts[1].id] * 4


def test_the_provider_continues_the_trace(traced):
    received, _, _ = traced
    spans = spans_of(received, CLIENT_TRACE)
    elsewhere = only(spans, "POST /v1/videos", "filmgate-second")
    assert elsewhere.parent == only(spans, "provider start").id
    assert only(spans, "denoise", "filmgate-second").attributes["filmgate.model.name"] == MODEL


def test_a_failed_attempt_shows_its_stage_and_the_code_of_the_error(traced):
    received, _, _ = traced
    spans = spans_of(received, CLIENT_TRACE)
    attempts = [span for span in spans if (span.name, span.service) == ("attempt", "filmgate-first")]
    assert [span.is_error for span in attempts] == [True, False]
    assert attempts[0].attributes["error.type"] == OutOfMemory.code
    assert [only(spans, name).is_error for name in ("text", "denoise", "decode")] == [False, False, True]


def test_the_spans_of_a_job_on_our_gpu_have_its_facts_and_what_the_gpu_did(traced):
    received, _, created = traced
    spans = spans_of(received, created.json()["trace_id"])
    names = ["attempt", "text", "denoise", "checkpoint", "decode", "encode", "upload", "publish"]
    assert {only(spans, name).name for name in names} == set(names)
    attempt, denoise = only(spans, "attempt"), only(spans, "denoise")
    expected = {"filmgate.tenant.id": "local", "filmgate.model.name": MODEL, "filmgate.attempt": 1,
                "filmgate.frames": 16, "filmgate.job.id": created.json()["id"]}  # fmt: skip
    assert expected.items() <= attempt.attributes.items()
    assert expected.items() <= denoise.attributes.items()
    assert attempt.attributes["filmgate.gpu.uuid"] == GPU
    assert attempt.attributes["host.id"] == "i-0abc"
    busy = {"filmgate.gpu.utilization": 50.0, "filmgate.gpu.sm_clock_mhz": 1700.0,
            "filmgate.gpu.power_watts": 400.0, "filmgate.gpu.temperature_celsius": 70,
            "filmgate.gpu.memory_bytes": 9 << 30}  # fmt: skip
    assert busy.items() <= denoise.attributes.items()
    encode = only(spans, "encode")
    assert attempt.start <= encode.start <= encode.end <= attempt.end
    wait = only(spans, "queue wait")
    assert only(spans, "admit").start <= wait.end <= attempt.end


def test_a_job_that_waited_for_a_worker_to_start_shows_its_load(traced):
    received, _, created = traced
    spans = spans_of(received, created.json()["trace_id"])
    assert only(spans, "load").parent == only(spans, "queue wait").id
    assert only(spans, "model download").parent == only(spans, "queue wait").id


def test_a_hostile_prompt_is_in_no_exported_byte(traced):
    received, created, _ = traced
    assert created.json()["prompt"].startswith("zebra-7f3a")
    assert received.bodies
    assert not any(word in body for body in received.bodies for word in WORDS)


def test_answers_and_errors_name_request_and_trace(traced):
    _, created, _ = traced
    assert created.headers["x-request-id"].startswith("req_")
    assert created.headers["traceparent"].startswith(f"00-{CLIENT_TRACE}-")
    root = f"Root=1-{CLIENT_TRACE[:8]}-{CLIENT_TRACE[8:]};Parent="
    assert created.headers["x-amzn-trace-id"].startswith(root)
