"""The GPU worker of one Filmgate is stopped and a second Filmgate renders its jobs, in real processes."""

import httpx
import pytest

from filmgate.jobs import ManagedPolicy, RouteReason, TenantId
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.chaos.conftest import Site
from tests.fork_server import WORKER_TIMEOUT
from tests.pattern_runner import pattern_clip
from tests.second_filmgate import CARDS_ENVIRON, QUICK_ENVIRON, SecondFilmgate
from tests.server_process import ServerProcess

TENANT = TenantId("bank")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    second = SecondFilmgate(tmp_path_factory.mktemp("second"))
    yield second
    second.kill()


@pytest.fixture(scope="module")
def first(tmp_path_factory, second):
    """A Filmgate without a GPU worker: the server, and the worker of the managed route."""
    folder = tmp_path_factory.mktemp("first")
    environ = {
        "FILMGATE_DATA": str(folder / "data"),
        "FILMGATE_PROVIDER__KIND": "http",
        "FILMGATE_PROVIDER__URL": f"{second.url}/v1",
        "FILMGATE_PROVIDER__API_KEY": second.key,
        "FILMGATE_PROVIDER__TIMEOUT_SECONDS": "5",
        "FILMGATE_PROVIDER__EXPECTED_SECONDS": "5",
        "FILMGATE_ROUTING__SPILL_SECONDS": "0.2",
        "FILMGATE_ADMISSION__SLO_SECONDS": "300",
        WORKER_TIMEOUT: "10",
    }
    site = Site(environ | QUICK_ENVIRON | CARDS_ENVIRON, folder / "workers.log")
    policy = ManagedPolicy(is_allowed=True)
    site.key = TenantRegistry(site.database).add(Tenant(TENANT, managed=policy)).secret
    site.start_managed_worker()
    server = ServerProcess(folder, "--no-worker", **site.environ)
    site.workers.append(server.process)
    site.url = server.url
    yield site
    site.close()


def create(first, prompt):
    headers = {"Authorization": f"Bearer {first.key}"}
    body = {"prompt": prompt, "seconds": "2", "size": "128x128", "seed": 7}
    return httpx.post(f"{first.url}/v1/videos", json=body, headers=headers).raise_for_status().json()["id"]


def find(first, video_id):
    headers = {"Authorization": f"Bearer {first.key}"}
    return httpx.get(f"{first.url}/v1/videos/{video_id}", headers=headers).json()


def wait_for(first, video_id, *states):
    def find_in_state():
        video = find(first, video_id)
        return video if video["status"] in states else None

    return first.wait_until(find_in_state)


def is_whole(first, video_id):
    headers = {"Authorization": f"Bearer {first.key}"}
    clip = httpx.get(f"{first.url}/v1/videos/{video_id}/content", headers=headers).content
    return clip == pattern_clip(first.reader.find(TENANT, video_id).spec)


def test_jobs_of_a_second_filmgate_look_like_any_other(first, second):
    videos = [create(first, f"ball {number}") for number in range(3)]
    for video_id in videos:
        done = wait_for(first, video_id, "completed", "failed")
        assert (done["status"], done["progress"], done["size"], done["seconds"]) == (
            "completed",
            100,
            "128x128",
            "2",
        )
        assert is_whole(first, video_id)
        job = first.reader.find(TENANT, video_id)
        assert (job.routing.reason, job.finished_at < job.deadline_at) == (RouteReason.DEADLINE, True)
        assert "http" not in str({key: value for key, value in done.items() if key != "prompt"})
    with httpx.Client(headers={"Authorization": f"Bearer {second.key}"}) as client:
        first.wait_until(lambda: client.get(f"{second.url}/v1/videos").json()["data"] == [])
    log = first.log.read_text()
    assert "started at the provider" in log
    assert second.key not in log
    assert "ball 1" not in log


def test_a_provider_that_dies_during_a_job_renders_one_clip_when_it_is_back(first, second):
    def count_starts():
        return first.log.read_text().count("started at the provider")

    before = count_starts()
    second.worker.kill()  # a paused worker could hold the lock of the database
    second.worker.wait(60)
    video_id = create(first, "a red ball")
    first.wait_until(lambda: count_starts() == before + 1)
    second.kill()
    first.wait_for_log("backing off")
    assert find(first, video_id)["status"] != "failed"
    second.start()
    wait_for(first, video_id, "completed")
    assert is_whole(first, video_id)
    assert count_starts() == before + 1
