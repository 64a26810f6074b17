"""kill -9 of the server while it accepts jobs: no accepted job is lost, and a retry finds its job."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import httpx
import pytest

from tests.server_process import ServerProcess
from tests.waiting import wait_until

CLIENTS = 8
RETRY = {"x-stainless-retry-count": "1"}


def start(folder):
    server = ServerProcess(folder, "--open", "--no-worker", FILMGATE_ADMISSION__PROMISE_SECONDS="1000000")
    return server, server.url


def create(url, prompt, headers=None):
    """The id of the accepted job, or None if the server died before it responded."""
    body = {"prompt": prompt, "seconds": "2", "size": "64x64"}
    try:
        response = httpx.post(f"{url}/v1/videos", json=body, headers=headers or {}, timeout=60)
    except httpx.TransportError:
        return None
    assert response.status_code == 200, response.text
    return response.json()["id"]


def create_until_the_server_dies(url, number, ids):
    """Create jobs one after the other and record the id by prompt, None for the one without a response."""
    for turn in count():
        prompt = f"ball {number} of turn {turn}"
        ids[prompt] = create(url, prompt)
        if ids[prompt] is None:
            return


def list_videos(url):
    jobs, after = [], ""
    while True:
        page = httpx.get(f"{url}/v1/videos?limit=100{after}").json()
        jobs += page["data"]
        if not page["has_more"]:
            return jobs
        after = f"&after={page['last_id']}"


@pytest.mark.parametrize("accepted", [1, 100])
def test_a_server_killed_while_it_accepts_jobs_loses_none_and_creates_none_twice(tmp_path, accepted):
    server, url = start(tmp_path)
    ids = {}
    with ThreadPoolExecutor(CLIENTS) as clients:
        creating = [clients.submit(create_until_the_server_dies, url, n, ids) for n in range(CLIENTS)]
        wait_until(lambda: len(ids) >= accepted, interval=0.001)
        server.process.kill()
        for future in creating:
            future.result()
    server.process.wait()
    server, url = start(tmp_path)
    try:
        lost = [prompt for prompt, job in ids.items() if job is None]
        assert len(lost) == CLIENTS
        ids |= {prompt: create(url, prompt, RETRY) for prompt in lost}
        jobs = list_videos(url)
    finally:
        server.process.kill()
        server.process.wait()
    assert {job["prompt"]: job["id"] for job in jobs} == ids
    assert len(jobs) == len(ids)
