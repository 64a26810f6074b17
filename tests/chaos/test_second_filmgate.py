"""Our own worker is gone; a second Filmgate makes the clips, in real processes. Clients see only jobs."""

import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from filmgate.jobs import ManagedPolicy, RouteReason, TenantId
from filmgate.tenants import open_tenants
from filmgate.tenants.base import Tenant
from filmgate.worker.pattern_runner import MODEL, pattern_clip
from tests.chaos.conftest import ROOT, Site
from tests.second_filmgate import CARDS
from tests.server_process import ServerProcess

BANK = TenantId("bank")
CARD = {"FILMGATE_ADMISSION__MODELS_FILE": str(CARDS), "FILMGATE_ADMISSION__DEFAULT_MODEL": MODEL}
QUICK = {
    "FILMGATE_QUEUE__LEASE_SECONDS": "2",
    "FILMGATE_WORKER__HEARTBEAT_SECONDS": "0.5",
    "FILMGATE_QUEUE__POLL_SECONDS": "0.05",
}


class Second:
    """The second Filmgate: a server, and a worker that renders patterns."""

    def __init__(self, folder, pace="0.02"):
        self.folder, self.pace = folder, pace
        self.served = self.worker = None
        self.start()
        self.key = (folder / "data" / "local.key").read_text().strip()

    def start(self, *options):
        self.served = ServerProcess(self.folder, "--no-worker", *options, **CARD)
        self.url = self.served.url
        command = [sys.executable, str(ROOT / "tests/chaos/pattern_worker.py"), self.pace, ""]
        environ = QUICK | {"FILMGATE_DATA": str(self.folder / "data"), "PYTHONPATH": str(ROOT)}
        with self.served.log.open("ab") as log:
            given = os.environ | environ
            self.worker = subprocess.Popen(command, env=given, stderr=log, stdout=log)

    def kill(self):
        for process in (self.served.process, self.worker):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(60)

    @property
    def port(self):
        return self.url.rpartition(":")[2]


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    second = Second(tmp_path_factory.mktemp("second"))
    yield second
    second.kill()


@pytest.fixture(scope="module")
def first(tmp_path_factory, second):
    """A bank's Filmgate whose GPU worker is stopped: the API, and the worker of the managed route."""
    folder = tmp_path_factory.mktemp("first")
    environ = {
        "FILMGATE_DATA": str(folder / "data"),
        "FILMGATE_PROVIDER__KIND": "http",
        "FILMGATE_PROVIDER__URL": f"{second.url}/v1",
        "FILMGATE_PROVIDER__API_KEY": second.key,
        "FILMGATE_PROVIDER__TIMEOUT_SECONDS": "5",
        "FILMGATE_PROVIDER__EXPECTED_SECONDS": "5",
        "FILMGATE_ROUTING__SILENCE_SECONDS": "5",
        "FILMGATE_ROUTING__SPILL_SECONDS": "0.2",
    }
    site = Site(environ | QUICK | CARD, folder / "workers.log")
    policy = ManagedPolicy(is_allowed=True)
    site.key = open_tenants(site.database).add(Tenant(BANK, managed=policy)).secret
    command = [sys.executable, "-m", "filmgate", "worker", "--managed"]
    with site.log.open("ab") as log:
        site.workers.append(subprocess.Popen(command, env=os.environ | site.environ, stderr=log))
    served = ServerProcess(folder, "--no-worker", **site.environ)
    site.workers.append(served.process)
    site.url = served.url
    yield site
    site.close()


def ask(first, prompt):
    headers = {"Authorization": f"Bearer {first.key}"}
    body = {"prompt": prompt, "seconds": "2", "size": "128x128", "seed": 7}
    return httpx.post(f"{first.url}/v1/videos", json=body, headers=headers).raise_for_status().json()["id"]


def wait_for(first, video_id, is_so, seconds=60):
    headers, ends = {"Authorization": f"Bearer {first.key}"}, time.monotonic() + seconds
    while True:
        video = httpx.get(f"{first.url}/v1/videos/{video_id}", headers=headers).json()
        if is_so(video):
            return video
        assert time.monotonic() < ends, f"{video}\n{first.log.read_text()[-3000:]}"
        time.sleep(0.05)


def content(first, video_id):
    headers = {"Authorization": f"Bearer {first.key}"}
    return httpx.get(f"{first.url}/v1/videos/{video_id}/content", headers=headers).content


def is_whole(first, video_id):
    return content(first, video_id) == pattern_clip(first.book.find(BANK, video_id).spec)


def test_jobs_finish_through_a_second_filmgate_and_look_like_any_other(first, second):
    videos = [ask(first, f"ball {number}") for number in range(3)]
    for video_id in videos:
        done = wait_for(first, video_id, lambda video: video["status"] in ("completed", "failed"))
        assert (done["status"], done["progress"], done["size"], done["seconds"]) == (
            "completed",
            100,
            "128x128",
            "2",
        )
        assert is_whole(first, video_id)
        job = first.book.find(BANK, video_id)
        assert (job.routing.reason, job.finished_at < job.deadline_at) == (RouteReason.DEADLINE, True)
        assert "http" not in str({key: value for key, value in done.items() if key != "prompt"})
    with httpx.Client(headers={"Authorization": f"Bearer {second.key}"}) as client:
        first.wait_until(lambda: client.get(f"{second.url}/v1/videos").json()["data"] == [])
    log = first.log.read_text()
    assert "started at the provider" in log
    assert second.key not in log
    assert "ball 1" not in log


def test_a_provider_that_dies_mid_job_is_waited_for_and_asked_for_one_clip(first, second):
    def started():
        return first.log.read_text().count("started at the provider")

    before = started()
    second.worker.kill()  # stopped instead, it might hold the database's lock for ever
    second.worker.wait(60)
    video_id = ask(first, "a red ball")
    first.wait_until(lambda: started() == before + 1)
    port = second.port
    second.kill()
    first.wait_until(lambda: "put off" in first.log.read_text())
    assert wait_for(first, video_id, lambda video: True)["status"] != "failed"
    second.start("--port", port)
    wait_for(first, video_id, lambda video: video["status"] == "completed")
    assert is_whole(first, video_id)
    assert started() == before + 1
