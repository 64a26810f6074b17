"""`filmgate serve` as a process: its worker child, its signals, and the examples it prints."""

import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

from filmgate import server
from filmgate.audit.installation import open_checkpoints
from filmgate.models.names import shipped_folder
from filmgate.server import ServerServices, background_tasks
from filmgate.settings import Settings, WorkerSettings
from filmgate.telemetry.metrics import BREAKER_PHASE, CERTIFICATE_EXPIRY, METRICS, Source
from filmgate.worker import supervisor
from filmgate.worker.supervisor import WorkerChild, end_with_parent
from tests.forks import run_process
from tests.server_process import COMMAND, ServerProcess
from tests.service import running, settings_for
from tests.stores import parts_of
from tests.waiting import wait_until

TINY = shipped_folder("miniature")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The command as users run it. Other tests here fork it from a process that has imported everything."""
    folder = tmp_path_factory.mktemp("serve")
    served = ServerProcess(folder, "--model", f"tiny={TINY}", command=COMMAND)
    yield served
    if served.process.poll() is None:
        served.process.kill()
        served.process.wait()


def test_the_printed_examples_run(served):
    served.wait_for_log(r'"message": "ready"')
    wait_until(lambda: "tiny" in httpx.get(f"{served.url}/v1/models", headers=served.headers).text)
    curl = served.wait_for_log(r"(curl http.*?)\n")[1]
    done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
    assert '"status":"queued"' in done.stdout
    assert '"model":"tiny"' in done.stdout
    python = served.wait_for_log(r"(import openai\n.*?clip\.mp4\"\)\n)")[1]
    assert len(python.splitlines()) == 4
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", python]
    subprocess.run(command, cwd=served.folder, check=True, timeout=180)
    assert (served.folder / "clip.mp4").read_bytes()[4:8] == b"ftyp"


def test_server_and_worker_have_management_ports_of_their_own(served):
    """Probes of both, without a key; the public port keeps asking for one."""
    served.wait_for_log(r'"message": "ready"')
    ports = re.findall(r'"the management port is open", "port": (\d+)', served.log.read_text())
    answers = [httpx.get(f"http://127.0.0.1:{port}/readyz") for port in ports]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [set(answer.json()["parts"]) for answer in answers] == [
        {"queue", "store"},
        {"model", "canary", "gpu", "leases"},
    ]
    of_server, of_worker = (httpx.get(f"http://127.0.0.1:{port}/metrics").text for port in ports)
    assert "filmgate_queue_up 1.0" in of_server
    cold_start = re.search(
        r'filmgate_cold_start_seconds_sum\{model="tiny",version="\w{12}"\} (\S+)', of_server
    )
    assert float(cold_start[1]) > 0
    assert "filmgate_worker_ready 1.0" in of_worker
    exported = set(re.findall(r"# TYPE (filmgate_\w+?)(?<!_created) ", of_server + of_worker))
    # This installation has no GPU, no certificate and no provider.
    absent = {metric.name for metric in METRICS if metric.source is Source.GPU}
    absent |= {CERTIFICATE_EXPIRY.name, BREAKER_PHASE.name}
    assert exported == {metric.name for metric in METRICS} - absent
    assert httpx.get(f"{served.url}/metrics").status_code == 401


def test_only_the_owner_can_read_the_key_file(served):
    key_file = Path(served.wait_for_log(r"The API key of the tenant `local` is in (\S+)")[1])
    assert key_file.stat().st_mode & 0o777 == 0o600


def test_the_worker_of_a_killed_server_ends(tmp_path):
    served = ServerProcess(tmp_path)
    served.wait_for_log("curl")
    worker = wait_until(served.worker)
    served.process.kill()
    served.process.wait()
    psutil.wait_procs([worker], timeout=60)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_worker_whose_server_is_already_dead_does_not_start(tmp_path):
    ran = tmp_path / "ran"
    for parent, expected in ((os.getpid(), True), (os.getppid(), False)):
        subprocess.run(["touch", ran], preexec_fn=partial(end_with_parent, parent), check=expected)
        assert ran.exists() is expected
        ran.unlink(missing_ok=True)


def test_a_killed_worker_is_restarted(served):
    worker = wait_until(served.worker)
    worker.kill()
    wait_until(lambda: (again := served.worker()) is not None and again.pid != worker.pid)
    assert "restarting it" in served.log.read_text()


def test_sigterm_stops_server_and_worker(served):
    assert httpx.get(f"{served.url}/healthz").status_code == 200
    worker = served.worker()
    assert served.stop() == 0
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_configured_provider_has_its_own_worker(tmp_path):
    provider = {"FILMGATE_PROVIDER__KIND": "http", "FILMGATE_PROVIDER__URL": "http://127.0.0.1:9/v1"}
    served = ServerProcess(tmp_path, **provider)
    served.wait_for_log("curl")
    process = psutil.Process(served.process.pid)
    wait_until(lambda: len(process.children()) == 2)
    children = process.children()
    served.wait_for_log('"device": "managed:http"')
    assert sorted(child.cmdline()[-1] for child in children) == ["--managed", "miniature"]
    assert served.stop() == 0
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def test_a_second_start_keeps_the_api_key(tmp_path):
    for _ in range(2):
        served = ServerProcess(tmp_path, "--no-worker")
        served.wait_for_log("curl")
        key = (tmp_path / "data" / "local.key").read_text()
        assert served.stop() == 0
    assert key == (tmp_path / "data" / "local.key").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--open", "--host", "0.0.0.0"], "error: --open: is only allowed on a loopback address"),
        (["--tls-certificate", "missing.pem"], "error: --tls-certificate, --tls-key: must be set together"),
        (
            ["--port", "99999"],
            "error: api.port: must be at most 65535, got 99999 (from --port)",
        ),
    ],
)
def test_an_invalid_option_is_one_line_on_stderr_and_exit_code_2(tmp_path, options, message):
    given = {"FILMGATE_DATA": str(tmp_path)}
    done = run_process("filmgate", "serve", "--port", "0", *options, environ=given)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


def test_the_error_for_a_port_in_use_names_the_remedy(tmp_path):
    served = ServerProcess(tmp_path, "--no-worker")
    port = served.wait_for_log(r"listening on http://127.0.0.1:(\d+)")[1]
    given = {"FILMGATE_DATA": str(tmp_path / "other")}
    done = run_process("filmgate", "serve", "--port", port, "--no-worker", environ=given)
    served.stop()
    assert (done.returncode, "choose another port" in done.stderr) == (2, True)


def test_a_worker_that_starts_during_the_drain_is_stopped(tmp_path, monkeypatch):
    child = WorkerChild(tmp_path, ["--model", "miniature"])
    real_popen = subprocess.Popen

    def drain_first(*arguments, **options):
        child.drain()
        return real_popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", drain_first)
    child.start()
    child.stop()
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(child.pid)


@pytest.mark.parametrize(("is_retryable", "starts"), [("false", 1), ("true", 3)])
def test_a_worker_that_cannot_start_is_reported_and_not_restarted_for_ever(
    tmp_path, is_retryable, starts, monkeypatch
):
    failure = f'{{"message": "torch is not installed", "is_retryable": {is_retryable}}}'
    script = f"echo start >> {tmp_path}/starts; echo '{failure}' > $0; exit 1"
    monkeypatch.setattr(supervisor, "_RESTART_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(supervisor, "FAILURE_OPTION", script)
    failures = []
    child = WorkerChild(tmp_path, [], failures.append)
    child._command = ["bash", "-c"]
    child.start()
    wait_until(lambda: child.has_failed and failures)
    child.drain()
    child.stop()
    assert failures == ["torch is not installed"]
    assert (tmp_path / "starts").read_text().count("start") == starts


@pytest.mark.parametrize("written", ["", '{"message": "torch is n', "[]", '{"reason": "new"}'])
def test_a_worker_whose_reason_cannot_be_read_is_restarted(tmp_path, written, monkeypatch):
    """It was killed while it wrote, or its version is another."""
    monkeypatch.setattr(supervisor, "_RESTART_SECONDS", (0.01, 0.01))
    script = f"echo start >> {tmp_path}/starts; echo '{written}' > $0; exit 1"
    monkeypatch.setattr(supervisor, "FAILURE_OPTION", script)
    child = WorkerChild(tmp_path, [])
    child._command = ["bash", "-c"]
    (tmp_path / "starts").touch()
    child.start()
    wait_until(lambda: (tmp_path / "starts").read_text().count("start") > 3)
    child.drain()
    child.stop()
    assert not child.has_failed


def test_a_worker_that_cannot_be_forked_is_started_later(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "_RESTART_SECONDS", (0.01, 0.01))
    child, left, real_popen = (
        WorkerChild(tmp_path, []),
        [OSError(11, "no process can be created")] * 3,
        subprocess.Popen,
    )

    def popen_without_memory(*arguments, **options):
        if left:
            raise left.pop()
        return real_popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", popen_without_memory)
    child._command = ["bash", "-c", "exit 3"]
    child.start()
    wait_until(lambda: child.has_failed)
    child.stop()
    assert not left


def test_a_worker_that_gets_no_temporary_folder_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    failures = []
    child = WorkerChild(tmp_path, [], failures.append)
    child.start()
    child._thread.join(60)
    assert child.has_failed
    assert failures == ["the temporary folder cannot be used (No such file or directory); set TMPDIR"]


def test_a_worker_may_drain_as_long_as_its_setting_says(tmp_path):
    settings = Settings(data=tmp_path, worker=WorkerSettings(drain_seconds=3600))
    (child,) = server.embedded_workers(settings, {"tiny": "miniature"}, lambda reason: None)
    assert child._stop_seconds > 3600


def test_a_worker_whose_gpu_is_broken_is_not_restarted(tmp_path):
    """A restart would lease jobs for the same GPU again."""
    failures = []
    child = WorkerChild(tmp_path, [], failures.append)
    child._command = ["bash", "-c", "exit 3"]
    child.start()
    child._thread.join(60)
    assert child.has_failed
    assert "replace the GPU that the log names" in failures[0]


def test_a_worker_says_why_it_cannot_start(tmp_path):
    failures = []
    child = WorkerChild(tmp_path, ["--managed"], failures.append)
    child.start()
    wait_until(lambda: failures)
    child.stop()
    assert failures == [
        "no managed provider is configured; set provider.kind, as in FILMGATE_PROVIDER__KIND=bedrock"
    ]


def test_a_model_for_a_worker_that_does_not_run_is_refused(tmp_path):
    given = {"FILMGATE_DATA": str(tmp_path)}
    done = run_process("filmgate", "serve", "--no-worker", "--model", "wan", environ=given)
    assert (done.returncode, done.stderr.startswith("error: --model: ")) == (2, True)


def test_expired_jobs_are_deleted_while_the_server_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "RETENTION_SECONDS", 0.05)
    settings = settings_for(tmp_path)
    with running(settings) as service, service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "x"}).json()
        job, services = service.hand().make(), service.services
        database = services.queue._database
        with database.write() as connection:
            connection.exec_driver_sql("UPDATE jobs SET expires_at = 1")
        checkpoints = open_checkpoints(database, settings)
        with background_tasks(
            ServerServices(services, services.queue, None, checkpoints, database), settings
        ):
            wait_until(lambda: client.get(f"/v1/videos/{video['id']}").status_code != 200)
        assert parts_of(services.store, job.tenant_id, job.id) == []
