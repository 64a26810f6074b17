"""A dedicated tenant over HTTP and on the command line: what is promised, refused and shown."""

import json

import pytest

from filmgate.jobs import Route, TenantId, WorkerId
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from tests.commands import run_filmgate
from tests.service import running, settings_for
from tests.tickets import make_ticket


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dedicated")
    settings = settings_for(folder, admission__scale_from_zero="", admission__promise_seconds=60.0)
    with running(settings) as service:
        announce(service, "shared")
        yield service


def announce(service, name, *tenants):
    registry = WorkerRegistry(service.services.queue._database)
    own = tuple(map(TenantId, tenants))
    registry.heartbeat(WorkerStatus(WorkerId(name), Route.GPU, ("flipbook",), "cpu", tenants=own))
    service.services.forecast.refresh()


def test_a_dedicated_tenant_waits_for_its_own_worker_and_its_promise_is_its_own(service):
    with service.client() as admin:
        added = admin.post("/v1/tenants", json={"id": "bank", "is_dedicated": True})
        assert (added.status_code, added.json()["is_dedicated"]) == (201, True)
        with service.client(added.json()["api_key"]) as bank:
            refused = bank.post("/v1/videos", json={"prompt": "x"})
            assert refused.status_code == 503
            message = refused.json()["error"]["message"]
            assert "for this tenant" in message
            assert "`filmgate worker --model flipbook --tenant bank`" in message
            announce(service, "own", "bank")
            for number in range(20):
                service.services.queue.enqueue(make_ticket(f"other-{number}", gpu_seconds=100))
            service.services.forecast.refresh()
            accepted = bank.post("/v1/videos", json={"prompt": "x"})
            assert (accepted.status_code, accepted.json()["queue_position"]) == (200, 1)
        service.services.forecast.refresh()
        shown = {job["tenant"]: job for job in admin.get("/v1/queue").json()["data"]}
        assert (shown["bank"]["is_dedicated"], shown["bank"]["starts_in_seconds"]) == (True, 0.0)
        assert shown["other-19"]["is_dedicated"] is False
        workers = {worker["id"]: worker["tenants"] for worker in admin.get("/v1/workers").json()["data"]}
        assert workers == {"shared": [], "own": ["bank"]}


def test_the_command_line_marks_a_tenant_and_shows_it(tmp_path):
    assert run_filmgate(tmp_path, "tenant", "add", "bank").returncode == 0
    marked = run_filmgate(tmp_path, "tenant", "set", "bank", "--dedicated", "--json")
    assert json.loads(marked.stdout)["is_dedicated"] is True
    assert "dedicated" in run_filmgate(tmp_path, "tenant", "list").stdout
    shared = run_filmgate(tmp_path, "tenant", "set", "bank", "--shared", "--json")
    assert json.loads(shared.stdout)["is_dedicated"] is False


def test_a_worker_for_a_tenant_that_does_not_exist_is_refused(tmp_path):
    assert run_filmgate(tmp_path, "tenant", "add", "bank").returncode == 0
    refused = run_filmgate(tmp_path, "worker", "--tenant", "bnak")
    assert refused.returncode != 0
    assert "no tenant is named bnak" in refused.stderr
