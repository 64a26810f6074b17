"""`filmgate worker` as a process with the miniature model."""

import json
import os
import signal
import subprocess
import sys
from io import BytesIO

import av
import pytest

from filmgate.database import open_database
from filmgate.jobs import JobState
from filmgate.scheduling import open_queue, open_reader
from filmgate.settings import Settings, StoreSettings
from filmgate.store import open_store
from filmgate.store.base import ObjectName
from filmgate.store.keys import open_keys
from tests.service import running, settings_for
from tests.tickets import PROMPT, make_ticket
from tests.waiting import wait_until


def filmgate(*arguments, **environ):
    return subprocess.Popen(
        [sys.executable, "-m", "filmgate", *arguments],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_process_renders_a_playable_clip_and_drains(tmp_path):
    settings = Settings(data=tmp_path)
    database = open_database(settings.queue, tmp_path)
    keys = open_keys(settings.store, tmp_path)
    queue, reader = open_queue(database, keys, settings.queue), open_reader(database, keys)
    job = queue.enqueue(make_ticket(model="tiny", width=64, height=64, seconds=9 / 16, steps=2))
    worker = filmgate("worker", "--model", "tiny=miniature", "--data", str(tmp_path))
    try:
        wait_until(lambda: reader.find(job.tenant_id, job.id).state.is_final, seconds=120)
    finally:
        worker.send_signal(signal.SIGTERM)
        _, log = worker.communicate(timeout=60)
    done = reader.find(job.tenant_id, job.id)
    assert (done.state, worker.returncode) == (JobState.COMPLETED, 0), log
    store = open_store(StoreSettings(), tmp_path, keys)
    clip = b"".join(store.read(ObjectName(job.tenant_id, job.id, done.clip.part)))
    with av.open(BytesIO(clip)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 9
    lines = [json.loads(line) for line in log.splitlines()]
    messages = [line.get("message") for line in lines if line["logger"] == "filmgate.worker"]
    assert messages[0] == "ready"
    assert messages[-1] == "drained"
    assert all(line["trace_id"] == job.trace_id for line in lines if "job_id" in line)
    assert PROMPT not in log
    database.close()


def test_a_model_without_a_card_is_available_while_its_worker_is_alive(tmp_path):
    body = {"prompt": PROMPT, "model": "tiny", "size": "64x64", "seconds": 0.5, "steps": 2}
    with running(settings_for(tmp_path, admission__models_file="")) as service, service.client() as client:
        worker = filmgate("worker", "--model", "tiny=miniature", "--data", str(tmp_path))
        try:
            wait_until(lambda: "tiny" in names(client), seconds=120)
            assert client.get("/v1/models/tiny").json()["limits"]["size"]["multiple"] >= 8
            video = client.post("/v1/videos", json=body).json()
            wait_until(lambda: client.get(f"/v1/videos/{video['id']}").json()["status"] == "completed", 120)
            rejected = client.post("/v1/videos", json=body | {"size": "63x64"})
            assert "64x64" in rejected.json()["error"]["message"]
        finally:
            worker.send_signal(signal.SIGTERM)
            _, log = worker.communicate(timeout=60)
        assert worker.returncode == 0, log
        wait_until(lambda: "tiny" not in names(client))
        gone = client.post("/v1/videos", json=body)
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
        assert client.get(f"/v1/videos/{video['id']}/content").status_code == 200


def names(client):
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (("--model", "=x"), {}, "--model: '=x' is not NAME or NAME=LOCATION"),
        ((), {"FILMGATE_QUEUE__URL": "mysql://x/y"}, "queue.url"),
        (("--managed",), {}, "--managed: no provider is configured; set provider.kind"),
        (("--managed",), {"FILMGATE_PROVIDER__KIND": "http"}, "provider.url: expected http(s)://HOST/v1"),
        ((), {"FILMGATE_WORKER__HEARTBEAT_SECONDS": "20"}, "worker.heartbeat_seconds"),
    ],
)
def test_a_wrong_option_or_setting_is_one_line_on_stderr_and_exit_code_2(
    tmp_path, arguments, environ, message
):
    worker = filmgate("worker", *arguments, FILMGATE_DATA=str(tmp_path), **environ)
    _, log = worker.communicate(timeout=60)
    assert (worker.returncode, log.count("\n")) == (2, 1), log
    assert message in log


def test_a_worker_without_its_database_fails_with_the_reason(tmp_path):
    url = f"postgresql://nobody@/none?host={tmp_path}"
    worker = filmgate("worker", FILMGATE_DATA=str(tmp_path), FILMGATE_QUEUE__URL=url)
    _, log = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "the job database is unavailable" in log
