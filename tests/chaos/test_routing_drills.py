"""Routing with real processes: GPU workers stop and start again, and a provider throttles every request."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import httpx
import pytest

from filmgate.jobs import ManagedPolicy, Route, RouteReason, TenantId
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Phase
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.fork_server import WORKER_TIMEOUT
from tests.pattern_runner import MODEL
from tests.second_filmgate import CARDS_ENVIRON, SecondFilmgate
from tests.server_process import ServerProcess

TENANT = TenantId("bank")
VIDEOS = 8
SETTINGS = CARDS_ENVIRON | {
    "FILMGATE_PROVIDER__KIND": "http",
    "FILMGATE_PROVIDER__EXPECTED_SECONDS": "5",
    "FILMGATE_PROVIDER__POLL_SECONDS": "0.1",
    "FILMGATE_ROUTING__SPILL_SECONDS": "0.1",
    "FILMGATE_ADMISSION__SLO_SECONDS": "300",
    WORKER_TIMEOUT: "10",
}


class RoutedSite:
    """A site with a server, a worker for the managed route, and GPU workers that tests start and kill."""

    def __init__(self, site):
        self.site = site
        policy = ManagedPolicy(is_allowed=True)
        self.key = TenantRegistry(site.database).add(Tenant(TENANT, managed=policy)).secret
        server = ServerProcess(site.log.parent, "--no-worker", model=MODEL, **site.environ)
        site.workers.append(server.process)
        self.url = server.url

    def start_gpu_worker(self):
        """Start a GPU worker and wait until the server keeps new jobs for it."""
        process = self.site.start_worker()
        self.site.wait_until(self.has_gpu_worker)
        self.site.wait_until(lambda: self.create(1)[0]["route"] == Route.GPU)
        return process

    def has_gpu_worker(self):
        return any(worker.route is Route.GPU for worker in self.site.reader.backlog().workers)

    def client(self):
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=30)

    def create(self, count):
        body = {"seconds": "2", "size": "128x128"}
        with self.client() as client:
            responses = [client.post("/v1/videos", json=body | {"prompt": f"ball {n}"}) for n in range(count)]
        return [response.raise_for_status().json() for response in responses]

    def find(self, video):
        return self.site.reader.find(TENANT, video["id"])

    def wait_for(self, videos):
        """Wait until every job has ended."""
        self.site.wait_until(lambda: all(self.find(video).state.is_final for video in videos))


@pytest.fixture
def open_site(make_site):
    def open_(url, key="any"):
        provider = {"FILMGATE_PROVIDER__URL": f"{url}/v1", "FILMGATE_PROVIDER__API_KEY": key}
        return RoutedSite(make_site(**SETTINGS, **provider))

    return open_


def test_jobs_move_to_the_provider_while_no_gpu_worker_runs_and_new_jobs_return(tmp_path, open_site):
    (tmp_path / "second").mkdir()
    second = SecondFilmgate(tmp_path / "second")
    try:
        site = open_site(second.url, second.key)
        site.site.start_managed_worker()
        gpu_worker = site.start_gpu_worker()
        local = site.create(1)
        site.wait_for(local)
        assert site.find(local[0]).route is Route.GPU
        site.site.kill(gpu_worker)

        # They wait for the dead worker until it times out; then the spill moves them.
        moved = site.create(3)
        site.wait_for(moved)
        for video in moved:
            job = site.find(video)
            assert (job.state, job.route, job.routing.reason) == (
                "completed",
                Route.MANAGED,
                RouteReason.DEADLINE,
            )
            assert job.finished_at < job.deadline_at
            assert site.site.is_whole(job)
        with site.client() as client:
            seen = client.get(f"/v1/videos/{moved[0]['id']}").json()
        assert (seen["status"], seen["progress"], seen["error"]) == ("completed", 100, None)

        site.start_gpu_worker()
        local = site.create(2)
        site.wait_for(local)
        assert {site.find(video).route for video in local} == {Route.GPU}
    finally:
        second.kill()


class ThrottlingHandler(BaseHTTPRequestHandler):
    """Lists its model and answers every create with 429. Records the time and the number of open creates."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(200, {"data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.active += 1
            self.server.creates.append((time.monotonic(), self.server.active))
        time.sleep(0.05)  # long enough for creates to overlap
        with self.server.lock:
            self.server.active -= 1
        self._answer(429, {"error": {"code": "rate_limit_exceeded"}})

    def _answer(self, status, fields):
        body = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def throttling():
    server = ThreadingHTTPServer(("127.0.0.1", 0), ThrottlingHandler)
    server.daemon_threads = True
    server.lock, server.active, server.creates = threading.Lock(), 0, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(60)


@pytest.mark.chaos
def test_a_provider_that_throttles_everything_gets_one_probe_at_a_time_and_jobs_wait_for_a_gpu(
    open_site, throttling, monkeypatch
):
    monkeypatch.setitem(SETTINGS, "FILMGATE_ROUTING__OPEN_SECONDS", "0.4")
    monkeypatch.setitem(SETTINGS, "FILMGATE_ROUTING__MAX_OPEN_SECONDS", "0.4")
    site = open_site(f"http://127.0.0.1:{throttling.server_address[1]}")
    breaker = Breaker(site.site.database, "http", site.site.settings.routing)
    for _ in range(2):
        site.site.start_managed_worker()
    videos = site.create(VIDEOS)
    site.site.wait_until(lambda: breaker.health().phase is not Phase.CLOSED)
    # Each job has at most one create in flight when the breaker opens. All later creates are probes.
    first_probe = len(throttling.creates) + VIDEOS
    site.site.wait_until(lambda: len(throttling.creates) >= first_probe + 4)
    probes = throttling.creates[first_probe:]
    assert {active for _, active in probes} == {1}
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(probes)]
    assert min(pauses) >= 0.2  # half of 0.4 s: the minimum after jitter

    def wait_for_a_gpu():
        jobs = [site.find(video) for video in videos]
        is_waiting = all(not job.state.is_final for job in jobs)
        return is_waiting and sum(job.route is Route.GPU for job in jobs) >= VIDEOS - 1

    site.site.wait_until(wait_for_a_gpu)
    site.site.start_worker()
    site.wait_for(videos)
    assert {site.find(video).state for video in videos} == {"completed"}
    assert {site.find(video).route for video in videos} == {Route.GPU}
