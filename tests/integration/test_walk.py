"""One create and one job call the packages from top to bottom. docs/request/walk.md lists their calls."""

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
from tests.walk import count_files, count_functions, is_timed, read_page, recorded_walk, to_page, upward_calls

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
        job = tuple([call for call in calls if call[0].package != "api"] for calls in walk.take())
        assert client.get(f"/v1/videos/{video_id}").json()["status"] == "completed"
    if os.environ.get("FILMGATE_WRITE_DOCS"):
        PAGE.write_text(to_page(create[1], job[1]))
    return {"Create": create, "Job": job}


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


WALKS = ("Create", "Job")


@pytest.fixture(scope="module")
def listed(walks):
    """The heading and the calls of each walk on the page, which may have been written just now."""
    return read_page(PAGE.read_text())


@pytest.mark.parametrize("name", WALKS)
def test_no_package_calls_a_package_above_it(walks, name):
    assert upward_calls(walks[name][0]) == []


@pytest.mark.parametrize("name", WALKS)
def test_the_page_lists_every_call_and_no_other(walks, listed, name):
    recorded = {(str(caller), str(callee)) for caller, callee in walks[name][1]}
    assert sorted(recorded - listed[name][1]) == [], "run `make docs`"
    unused = listed[name][1] - recorded
    assert sorted(call for call in unused if not is_timed(*call)) == [], "run `make docs`"


@pytest.mark.parametrize("name", WALKS)
def test_the_page_counts_what_it_lists(walks, listed, name):
    heading, calls = listed[name]
    functions = len({callee for _, callee in calls})
    files = len({function.split()[0] for call in calls for function in call})
    assert heading == f"{name}: {functions} functions in {files} files"
    assert (count_functions(walks[name][1]), count_files(walks[name][1])) <= (functions, files)


def test_the_walks_reach_the_packages_on_the_path(walks):
    create, job = ({function.package for call in walks[name][0] for function in call} for name in WALKS)
    assert create == {"api", "admission", "scheduling", "store"}
    assert job == {"worker", "scheduling", "pipeline", "store"}
