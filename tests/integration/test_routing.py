"""The route over HTTP: a provider takes what we would refuse, and the client sees a normal job."""

import pytest

from filmgate.jobs import ManagedPolicy, Route, RouteReason, Routing, WorkerId
from filmgate.scheduling.base import Backlog, Offer
from tests.fake_provider import FakeProvider
from tests.service import running, settings_for

ALLOWED = ManagedPolicy(is_allowed=True)
EMPTY = Backlog((), None)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A deadline that is over before the promise is: what would be late is what would be refused."""
    folder = tmp_path_factory.mktemp("routed")
    settings = settings_for(folder, admission__promise_seconds=60.0, admission__slo_seconds=60.0)
    with running(settings, FakeProvider()) as service:
        service.services.gate.router.refresh(EMPTY)
        yield service


def fill(service, client):
    """Send requests until one does not stay: refused, or routed."""
    for number in range(60):
        service.services.gate._backlog._seen = None
        answer = client.post("/v1/videos", json={"prompt": "x"}, headers={"Idempotency-Key": str(number)})
        if answer.status_code != 200 or answer.json()["route"] != "gpu":
            return answer
    raise AssertionError("everything stayed")


def test_a_tenant_that_allows_nothing_is_refused_as_ever(service):
    with service.client(service.add_tenant("bank")) as client:
        refused = fill(service, client)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert "elsewhere" not in refused.text


def test_what_back_pressure_would_refuse_goes_to_the_provider_instead(service):
    with service.client(service.add_tenant("acme", managed=ALLOWED)) as client:
        routed = fill(service, client)
        assert (routed.status_code, routed.json()["route"]) == (200, "managed")
        for number in range(5):
            more = client.post("/v1/videos", json={"prompt": f"more {number}"})
            assert more.json()["route"] == "managed"


def test_the_record_says_why_and_the_client_is_told_no_name(tmp_path):
    settings = settings_for(tmp_path, admission__slo_seconds=60.0)
    with running(settings, FakeProvider()) as busy, busy.client() as client:
        busy.services.tenants.allow("local", ALLOWED)
        busy.services.gate.router.refresh(EMPTY)
        video = fill(busy, client).json()
        assert (video["status"], video["route"], video["eta_seconds"]) == ("queued", "managed", 30.0)
        assert "elsewhere" not in str(video)
        assert "ray" not in str(video)
        job = busy.services.reader.find("local", video["id"])
        assert (job.route, job.routing.reason) == (Route.MANAGED, RouteReason.DEADLINE)
        assert (job.routing.provider, job.routing.offer) == ("elsewhere", "ray")
        assert "s left; elsewhere takes 30 s" in job.routing.detail
        metrics = client.get("/metrics").text
        counted = (
            'filmgate_jobs_routed_total{model="flipbook",reason="deadline",route="managed",tenant="local"}'
        )
        assert f"{counted} 1.0" in metrics
        taken = busy.services.queue.lease(Offer(WorkerId("m"), ("flipbook",), Route.MANAGED))
        assert taken.job.id == video["id"]


def test_an_edit_never_leaves_for_a_provider_that_starts_from_text(tmp_path):
    with running(settings_for(tmp_path, admission__slo_seconds=1.0), FakeProvider()) as busy:
        busy.services.tenants.allow("local", ALLOWED)
        busy.services.gate.router.refresh(EMPTY)
        with busy.client() as client:
            first = client.post("/v1/videos", json={"prompt": "x"}).json()
            assert first["route"] == "gpu"  # 30 s there are no help against a deadline in 1 s
            assert busy.services.reader.find("local", first["id"]).routing.reason in {
                RouteReason.PROVIDER_SLOWER,
                RouteReason.TOO_LATE,
            }
            busy.hand().make()
            remix = client.post(f"/v1/videos/{first['id']}/remix", json={"prompt": "y"}).json()
            routing = busy.services.reader.find("local", remix["id"]).routing
            assert routing.reason is RouteReason.PROVIDER_CANNOT


def test_without_a_provider_there_is_no_router_and_nothing_to_record(tmp_path):
    with running(settings_for(tmp_path, admission__slo_seconds=0.001)) as plain, plain.client() as client:
        plain.services.tenants.allow("local", ALLOWED)
        assert plain.services.gate.router is None
        video = client.post("/v1/videos", json={"prompt": "x"}).json()
        job = plain.services.reader.find("local", video["id"])
        assert (job.route, job.routing) == (Route.GPU, Routing())
        assert "filmgate_jobs_routed_total{" not in client.get("/metrics").text
