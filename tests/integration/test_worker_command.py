"""`filmgate worker` as a process with the miniature model."""

import json
import signal
import subprocess
import sys
from io import BytesIO

import av
import pytest

from filmgate.jobs import TenantId
from tests.forks import run_process
from tests.service import running, settings_for
from tests.tickets import PROMPT
from tests.waiting import wait_until


def test_a_worker_renders_playable_clips_of_a_model_without_a_card_and_drains(tmp_path):
    """The model is available while its worker is alive. After that, its name is still known."""
    body = {"prompt": PROMPT, "model": "tiny", "size": "64x64", "seconds": 0.5, "steps": 2}
    settings = settings_for(tmp_path, admission__models_file="", admission__scale_from_zero="")
    with running(settings) as service, service.client() as client:
        command = [sys.executable, "-m", "filmgate", "worker", "--model", "tiny=miniature"]
        worker = subprocess.Popen(
            [*command, "--data", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            wait_until(lambda: "tiny" in names(client))
            assert client.get("/v1/models/tiny").json()["limits"]["size"]["multiple"] >= 8
            video = client.post("/v1/videos", json=body).raise_for_status().json()
            wait_until(lambda: client.get(f"/v1/videos/{video['id']}").json()["status"] == "completed")
            rejected = client.post("/v1/videos", json=body | {"size": "63x64"})
            assert "64x64" in rejected.json()["error"]["message"]
        finally:
            worker.send_signal(signal.SIGTERM)
            _, log = worker.communicate(timeout=60)
        assert worker.returncode == 0, log
        clip = client.get(f"/v1/videos/{video['id']}/content").content
        with av.open(BytesIO(clip)) as container:
            assert sum(1 for _ in container.decode(video=0)) == 9
        check_log(log, service.services.reader.find(TenantId("local"), video["id"]).trace_id)
        wait_until(lambda: "tiny" not in names(client))
        gone = client.post("/v1/videos", json=body)
        assert (gone.status_code, gone.json()["error"]["code"]) == (503, "model_not_served")
        assert client.get(f"/v1/videos/{video['id']}/content").status_code == 200


def check_log(log, trace_id):
    lines = [json.loads(line) for line in log.splitlines()]
    messages = [line.get("message") for line in lines if line["logger"] == "filmgate.worker"]
    assert (*messages[:2], messages[-1]) == ("loading a model", "ready", "drained")
    assert {line["trace_id"] for line in lines if "job_id" in line} == {trace_id}
    assert PROMPT not in log


def names(client):
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (("--model", "=x"), {}, "--model: '=x' is not NAME or NAME=LOCATION"),
        ((), {"FILMGATE_QUEUE__URL": "mysql://x/y"}, "queue.url"),
        (("--managed",), {}, "--managed: no managed provider is configured; set provider.kind"),
        (("--managed",), {"FILMGATE_PROVIDER__KIND": "http"}, "provider.url: expected http(s)://HOST/v1"),
        ((), {"FILMGATE_WORKER__HEARTBEAT_SECONDS": "20"}, "worker.heartbeat_seconds"),
    ],
)
def test_a_wrong_option_or_setting_is_one_line_on_stderr_and_exit_code_2(
    tmp_path, arguments, environ, message
):
    given = {"FILMGATE_DATA": str(tmp_path), **environ}
    worker = run_process("filmgate", "worker", *arguments, environ=given)
    assert (worker.returncode, worker.stderr.count("\n")) == (2, 1), worker.stderr
    assert message in worker.stderr


def test_a_worker_without_its_database_fails_with_the_reason(tmp_path):
    url = f"postgresql://nobody@/none?host={tmp_path}"
    given = {"FILMGATE_DATA": str(tmp_path), "FILMGATE_QUEUE__URL": url}
    worker = run_process("filmgate", "worker", environ=given)
    assert worker.returncode == 1
    assert "the job database is unavailable" in worker.stderr
