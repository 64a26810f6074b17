"""kill -9 of the server between accept and answer: what was accepted is there, and a retry finds it."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server_process import ServerProcess

CLIENTS = 8
RETRY = {"x-stainless-retry-count": "1"}


def start(folder):
    served = ServerProcess(folder, "--open", "--no-worker", FILMGATE_ADMISSION__PROMISE_SECONDS="1000000")
    return served, served.url


def ask(address, prompt, headers=None):
    """The id of the accepted job, or None where the answer was lost with the server."""
    body = {"prompt": prompt, "seconds": "2", "size": "64x64"}
    try:
        answer = httpx.post(f"{address}/v1/videos", json=body, headers=headers or {}, timeout=10)
    except httpx.TransportError:
        return None
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def ask_until_it_dies(address, number):
    """Creates, one after the other, until one is not answered: what each prompt was told."""
    told = {}
    for turn in range(1000):
        prompt = f"ball {number} of turn {turn}"
        told[prompt] = ask(address, prompt)
        if told[prompt] is None:
            break
    return told


def listed(address):
    jobs, after = [], ""
    while True:
        page = httpx.get(f"{address}/v1/videos?limit=100{after}").json()
        jobs += page["data"]
        if not page["has_more"]:
            return jobs
        after = f"&after={page['last_id']}"


@pytest.mark.parametrize("delay", [0.15, 0.4])
def test_a_server_killed_while_it_accepts_loses_nothing_and_doubles_nothing(tmp_path, delay):
    served, address = start(tmp_path)
    with ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(ask_until_it_dies, address, n) for n in range(CLIENTS)]
        time.sleep(delay)
        served.process.kill()
        told = {prompt: job for future in asking for prompt, job in future.result().items()}
    served.process.wait()
    served, address = start(tmp_path)
    try:
        lost = [prompt for prompt, job in told.items() if job is None]
        assert lost, "the server was killed too late to matter"
        told |= {prompt: ask(address, prompt, RETRY) for prompt in lost}
        jobs = listed(address)
    finally:
        served.process.kill()
        served.process.wait()
    assert {job["prompt"]: job["id"] for job in jobs} == told
    assert len(jobs) == len(told)
