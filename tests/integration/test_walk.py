"""One create and one job call the rooms from top to bottom. docs/request/walk.md lists their calls."""

import os
import threading
from pathlib import Path

import pytest

from filmgate.jobs import WorkerId
from filmgate.settings import PipelineSettings, WorkerSettings
from filmgate.worker.gpu_runner import GpuRunner
from filmgate.worker.loop import Worker
from tests.service import running, settings_for
from tests.waiting import wait_until
from tests.walk import between_rooms, recorded_walk, to_page, upward_calls

PAGE = Path(__file__).parents[2] / "docs/request/walk.md"


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """The calls of one `POST /v1/videos`, and those of the worker that renders the job."""
    runner = GpuRunner({"flipbook": "flipbook"}, PipelineSettings(device="cpu"))
    runner.check()
    runner.check = lambda: None  # a worker checks its runner at start, not per job
    data = tmp_path_factory.mktemp("walk")
    with recorded_walk() as walk, running(settings_for(data)) as service, service.client() as client:
        queue, store = service.services.queue, service.services.store
        is_ready, is_created, has_completed = (threading.Event() for _ in range(3))
        queue.lease = _after(queue.lease, is_ready.set, is_created.wait)
        queue.complete = _then(queue.complete, has_completed.set)
        worker = Worker(WorkerId("walk"), runner, queue, store, WorkerSettings())
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            wait_until(is_ready.is_set)
            walk.take()
            body = {"prompt": "a red ball", "model": "flipbook", "size": "64x64", "seconds": 0.5, "steps": 2}
            video_id = client.post("/v1/videos", json=body).json()["id"]
            wait_until(lambda: walk.has("EdgeProtocol.on_response_complete"))
            create = walk.take()
            is_created.set()
            wait_until(has_completed.is_set)
        finally:
            is_created.set()
            worker.drain()
            thread.join()
        # The server closes idle connections meanwhile.
        job = [call for call in walk.take() if any(function.room != "api" for function in call)]
        assert client.get(f"/v1/videos/{video_id}").json()["status"] == "completed"
    if os.environ.get("FILMGATE_WRITE_DOCS"):
        PAGE.write_text(to_page(create, job))
    return create, job


def _then(function, signal):
    """The function, followed by a signal: waiting for the end must not add calls to the walk."""

    def call(*arguments):
        result = function(*arguments)
        signal()
        return result

    return call


def _after(function, *signals):
    """The function, after signals: a running worker leases when the create is recorded."""

    def call(*arguments):
        for signal in signals:
            signal()
        return function(*arguments)

    return call


def test_no_room_calls_a_room_above_it(walks):
    create, job = walks
    assert upward_calls(create) == []
    assert upward_calls(job) == []


def test_the_page_lists_every_call_between_rooms(walks):
    listed = PAGE.read_text().splitlines()
    missing = [
        f"{a} -> {b}" for calls in walks for a, b in between_rooms(calls) if f"    {a} -> {b}" not in listed
    ]
    assert missing == []


def test_the_walks_reach_the_rooms_on_the_path(walks):
    create, job = ({function.room for call in calls for function in call} for calls in walks)
    assert create == {"api", "admission", "scheduling", "store"}
    assert job == {"worker", "scheduling", "pipeline", "store"}
