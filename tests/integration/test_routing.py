"""Routing over HTTP: a provider takes jobs that we would reject, and clients see ordinary jobs."""

from dataclasses import replace

import pytest

from filmgate.jobs import ManagedPolicy, Progress, Route, RouteReason, Routing, Stage, WorkerId
from filmgate.scheduling.base import Offer
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from tests.fake_provider import FakeProvider
from tests.service import running, settings_for

ALLOWED = ManagedPolicy(is_allowed=True)
GPU_WORKER = WorkerStatus(WorkerId("gpu"), Route.GPU, ("flipbook",))
MANAGED_WORKER = WorkerStatus(WorkerId("managed"), Route.MANAGED, ("flipbook",), capacity=100)


def allow(tenant):
    return replace(tenant, managed=ALLOWED)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The deadline equals the promise: a job that would be late would also be rejected."""
    folder = tmp_path_factory.mktemp("routed")
    settings = settings_for(folder, admission__promise_seconds=60.0, admission__slo_seconds=60.0)
    with running(settings, FakeProvider()) as service:
        yield service


def refresh(service):
    """What background tasks do every few seconds: workers announce themselves, and the spill refreshes."""
    registry = WorkerRegistry(service.services.queue._database)
    for status in (GPU_WORKER, MANAGED_WORKER):
        registry.heartbeat(status)
    if service.services.admission._services.router is not None:
        service.services.admission._services.router.managed.refresh()
    service.services.forecast.refresh()


def fill(service, client):
    """Create jobs until one is rejected or leaves our GPUs; returns its response."""
    for number in range(60):
        refresh(service)
        response = client.post("/v1/videos", json={"prompt": "x"}, headers={"Idempotency-Key": str(number)})
        if response.status_code != 200 or response.json()["route"] != "gpu":
            return response
    raise AssertionError("every job stayed on our GPUs")


def test_jobs_of_a_tenant_that_allows_no_provider_are_rejected(service):
    with service.client(service.add_tenant("bank")) as client:
        rejected = fill(service, client)
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (429, "overloaded")
        assert "elsewhere" not in rejected.text


def test_the_provider_takes_jobs_that_back_pressure_would_reject(service):
    with service.client(service.add_tenant("acme", managed=ALLOWED)) as client:
        routed = fill(service, client)
        assert (routed.status_code, routed.json()["route"]) == (200, "managed")
        for number in range(5):
            more = client.post("/v1/videos", json={"prompt": f"more {number}"})
            assert more.json()["route"] == "managed"


def test_the_job_records_the_reason_and_clients_do_not_see_the_provider(tmp_path):
    settings = settings_for(tmp_path, admission__slo_seconds=60.0)
    with running(settings, FakeProvider()) as busy, busy.client() as client:
        busy.services.tenants.update("local", allow)
        video = fill(busy, client).json()
        assert (video["status"], video["route"]) == ("queued", "managed")
        assert 20.0 < video["eta_seconds"] <= 30.0  # the provider's 30 s, less the age of the forecast
        assert "elsewhere" not in str(video)
        assert "ray" not in str(video)
        job = busy.services.reader.find("local", video["id"])
        assert (job.route, job.routing.reason) == (Route.MANAGED, RouteReason.DEADLINE)
        assert (job.routing.provider, job.routing.provider_model) == ("elsewhere", "ray")
        assert "s until the deadline; elsewhere takes 30 s" in job.routing.detail
        metrics = client.get("/metrics").text
        counted = (
            'filmgate_jobs_routed_total{model="flipbook",reason="deadline",route="managed",tenant="local"}'
        )
        assert f"{counted} 1.0" in metrics
        leased = busy.services.queue.lease(Offer(WorkerId("m"), ("flipbook",), Route.MANAGED))
        assert leased.job.id == video["id"]
        assert client.get(f"/v1/videos/{video['id']}").json()["eta_seconds"] == 30.0


def test_the_eta_of_a_provider_job_is_the_time_that_the_provider_needs(tmp_path):
    with running(settings_for(tmp_path, admission__slo_seconds=60.0), FakeProvider()) as busy:
        busy.services.tenants.update("local", allow)
        with busy.client() as client:
            video = fill(busy, client).json()
        lease = busy.services.queue.lease(Offer(WorkerId("managed"), ("flipbook",), Route.MANAGED))
        busy.services.queue.heartbeat(lease, Progress(Stage.DENOISE, 1, 100, 0.01))
        job = busy.services.reader.find("local", video["id"])
        assert busy.services.forecast.get().predict(job, job.started_at + 10)[1] == pytest.approx(20.0)
        (provider_job,) = busy.services.forecast.refresh().snapshot.running
        assert provider_job.ends_in > job.predicted.load + job.predicted.gpu_seconds + job.predicted.upload


def test_a_remix_stays_when_the_provider_renders_from_text_only(tmp_path):
    with running(settings_for(tmp_path, admission__slo_seconds=1.0), FakeProvider()) as busy:
        busy.services.tenants.update("local", allow)
        refresh(busy)
        with busy.client() as client:
            first = client.post("/v1/videos", json={"prompt": "x"}).json()
            assert first["route"] == "gpu"  # 30 s at the provider cannot meet a deadline in 1 s
            assert busy.services.reader.find("local", first["id"]).routing.reason in {
                RouteReason.PROVIDER_SLOWER,
                RouteReason.TOO_LATE,
            }
            busy.hand().make()
            remix = client.post(f"/v1/videos/{first['id']}/remix", json={"prompt": "y"}).json()
            routing = busy.services.reader.find("local", remix["id"]).routing
            assert routing.reason is RouteReason.PROVIDER_CANNOT


def test_without_a_provider_nothing_is_routed(tmp_path):
    with running(settings_for(tmp_path, admission__slo_seconds=0.001)) as plain, plain.client() as client:
        plain.services.tenants.update("local", allow)
        refresh(plain)
        video = client.post("/v1/videos", json={"prompt": "x"}).json()
        job = plain.services.reader.find("local", video["id"])
        assert (job.route, job.routing) == (Route.GPU, Routing())
        assert "filmgate_jobs_routed_total{" not in client.get("/metrics").text
