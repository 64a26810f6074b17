"""Routing under trial, all real processes: our GPUs stop, come back, and a provider throttles everything."""

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import httpx
import pytest

from filmgate.jobs import ManagedPolicy, Route, RouteReason, TenantId
from filmgate.providers.breaker import Breaker
from filmgate.providers.circuit import Phase
from filmgate.tenants import open_tenants
from filmgate.tenants.base import Tenant
from filmgate.worker.pattern_runner import MODEL
from tests.chaos.test_second_filmgate import Second
from tests.second_filmgate import CARDS
from tests.server_process import ServerProcess

BANK = TenantId("bank")
SLO_SECONDS = 60.0
QUICK = {
    "FILMGATE_PROVIDER__KIND": "http",
    "FILMGATE_PROVIDER__EXPECTED_SECONDS": "5",
    "FILMGATE_PROVIDER__POLL_SECONDS": "0.1",
    "FILMGATE_ROUTING__SILENCE_SECONDS": "5",
    "FILMGATE_ROUTING__SPILL_SECONDS": "0.1",
    "FILMGATE_ADMISSION__DEFAULT_MODEL": MODEL,
    "FILMGATE_ADMISSION__MODELS_FILE": str(CARDS),
    "FILMGATE_ADMISSION__SLO_SECONDS": str(SLO_SECONDS),
}


class Bank:
    """An installation with an API, a worker for the managed route, and GPU workers that come and go."""

    def __init__(self, site):
        self.site = site
        policy = ManagedPolicy(is_allowed=True)
        self.key = open_tenants(site.database).add(Tenant(BANK, managed=policy)).secret
        served = ServerProcess(site.log.parent, "--no-worker", model=MODEL, **site.environ)
        site.workers.append(served.process)
        self.url = served.url

    def start_managed_worker(self):
        command = [sys.executable, "-m", "filmgate", "worker", "--managed"]
        with self.site.log.open("ab") as log:
            process = subprocess.Popen(command, env=os.environ | self.site.environ, stderr=log)
        self.site.workers.append(process)

    def start_gpu_worker(self):
        """A GPU worker that has asked for work, so that the server has heard of it."""
        process = self.site.start_worker()
        self.site.wait_until(lambda: any(map(is_heard, self.site.queue.backlog().workers)))
        time.sleep(0.5)  # the server's own view may be a moment old
        return process

    def client(self):
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, timeout=30)

    def ask(self, count):
        body = {"seconds": "2", "size": "128x128"}
        with self.client() as client:
            answers = [client.post("/v1/videos", json=body | {"prompt": f"ball {n}"}) for n in range(count)]
        return [answer.raise_for_status().json() for answer in answers]

    def find(self, video):
        return self.site.book.find(BANK, video["id"])

    def wait_until(self, videos, is_so, seconds=60):
        self.site.wait_until(lambda: all(is_so(self.find(video)) for video in videos), seconds)


def is_heard(worker):
    return worker.route is Route.GPU and worker.silent_seconds < 1


@pytest.fixture
def open_bank(make_site):
    def make(url, key="any"):
        address = {"FILMGATE_PROVIDER__URL": f"{url}/v1", "FILMGATE_PROVIDER__API_KEY": key}
        return Bank(make_site(**QUICK, **address))

    return make


def test_jobs_leave_when_our_gpus_stop_finish_in_time_and_new_work_comes_home(tmp_path, open_bank):
    (tmp_path / "second").mkdir()
    second = Second(tmp_path / "second")
    try:
        bank = open_bank(second.url, second.key)
        bank.start_managed_worker()
        gpu = bank.start_gpu_worker()
        at_home = bank.ask(1)
        bank.wait_until(at_home, lambda job: job.state.is_final)
        assert bank.find(at_home[0]).route is Route.GPU
        bank.site.kill(gpu)

        stranded = bank.ask(3)
        bank.wait_until(stranded, lambda job: job.state.is_final)
        for video in stranded:
            job = bank.find(video)
            assert (job.state, job.route, job.routing.reason) == (
                "completed",
                Route.MANAGED,
                RouteReason.DEADLINE,
            )
            assert job.finished_at < job.deadline_at
            assert bank.site.is_whole(job)
        with bank.client() as client:
            seen = client.get(f"/v1/videos/{stranded[0]['id']}").json()
        assert (seen["status"], seen["progress"], seen["error"]) == ("completed", 100, None)

        bank.start_gpu_worker()
        back_home = bank.ask(2)
        bank.wait_until(back_home, lambda job: job.state.is_final)
        assert {bank.find(video).route for video in back_home} == {Route.GPU}
    finally:
        second.kill()


class Throttling(BaseHTTPRequestHandler):
    """An endpoint that lists its model and has no room for anything; it writes down who asked, and when."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(200, {"data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.asking += 1
            self.server.asked.append((time.monotonic(), self.server.asking))
        time.sleep(0.05)
        with self.server.lock:
            self.server.asking -= 1
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
    server = ThreadingHTTPServer(("127.0.0.1", 0), Throttling)
    server.daemon_threads = True
    server.lock, server.asking, server.asked = threading.Lock(), 0, []
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_a_provider_that_throttles_everything_is_probed_one_job_at_a_time_and_work_waits_at_home(
    open_bank, throttling, monkeypatch
):
    monkeypatch.setitem(QUICK, "FILMGATE_ROUTING__OPEN_SECONDS", "0.8")
    monkeypatch.setitem(QUICK, "FILMGATE_ROUTING__MAX_OPEN_SECONDS", "0.8")
    bank = open_bank(f"http://127.0.0.1:{throttling.server_address[1]}")
    breaker = Breaker(bank.site.database, "http", bank.site.settings.routing)
    for _ in range(2):
        bank.start_managed_worker()
    videos = bank.ask(8)
    bank.site.wait_until(lambda: breaker.health().phase is not Phase.CLOSED)
    opened_at = time.monotonic()
    # Nothing in flight at that moment counts; from then on it is one probe, a rest, and the next probe.
    time.sleep(0.5)
    bank.site.wait_until(lambda: len([at for at, _ in throttling.asked if at > opened_at + 0.5]) >= 4)
    probes = [(at, asking) for at, asking in throttling.asked if at > opened_at + 0.5]
    assert {asking for _, asking in probes} == {1}
    rests = [later - earlier for (earlier, _), (later, _) in pairwise(probes)]
    assert min(rests) >= 0.4  # half of 0.8 s, the least the jitter leaves

    def waits_at_home():
        jobs = [bank.find(video) for video in videos]
        return sum(job.route is Route.GPU for job in jobs) >= 7 and all(
            not job.state.is_final for job in jobs
        )

    bank.site.wait_until(waits_at_home)
    bank.site.start_worker()
    bank.wait_until(videos, lambda job: job.state.is_final)
    assert {bank.find(video).state for video in videos} == {"completed"}
    assert {bank.find(video).route for video in videos} == {Route.GPU}
