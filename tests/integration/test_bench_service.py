"""`filmgate bench service` against a real server and a worker."""

import json
import signal
import subprocess
import sys
import threading
from contextlib import closing

import httpx
import pytest
from typer.testing import CliRunner

from filmgate.cli import app
from filmgate.database import DEFAULT_FILE, open_database
from filmgate.errors import UsageError
from filmgate.jobs import TenantId, WorkerId
from filmgate.load_test.mix import ClipKind, plan_requests
from filmgate.load_test.report import Measured, figures
from filmgate.load_test.requests import send_requests, warm_up
from filmgate.load_test.server import Server, started_server
from filmgate.pipeline.bench.alone import measure_alone
from filmgate.settings import Settings, WorkerSettings, with_values
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from filmgate.worker.loop import Worker
from tests.pattern_runner import MODEL, PatternRunner
from tests.service import MODELS, running, settings_for


@pytest.fixture
def server(tmp_path):
    """A server whose worker renders test patterns."""
    settings = settings_for(tmp_path, admission__models_file=str(MODELS.with_name("pattern.toml")))
    with running(settings) as service:
        services = service.services
        worker = Worker(
            WorkerId("bench"), PatternRunner(0.005), services.queue, services.store, WorkerSettings()
        )
        thread = threading.Thread(target=worker.run)
        thread.start()
        yield Server(service.url, (service.key, service.add_tenant("acme")))
        worker.drain()
        thread.join(60)


def test_a_mix_of_clips_is_sent_and_every_link_is_measured(server):
    kinds = [ClipKind(MODEL, "128x128", 1.0, 2), ClipKind(MODEL, "64x64", 0.5, 4)]
    assert [each.error for each in warm_up(server, kinds)] == [None, None]
    plan = plan_requests(kinds, clips=5, per_hour=None, minutes=None)
    sent = send_requests(server, plan)
    found = figures(Measured(plan, sent, {}, None), dict.fromkeys(kinds, 0.05), 1.0)
    assert (found["clips"], found["failed"]) == (5, 0)
    assert [each.tenant for each in sent] == [0, 1, 0, 1, 0]
    for tenant, key in enumerate(server.keys):
        listed = httpx.get(f"{server.url}/v1/videos", headers={"Authorization": f"Bearer {key}"}).json()[
            "data"
        ]
        ids = {video["id"] for video in listed}
        assert {each.tenant for each in sent if each.video_id in ids} == {tenant}
    assert found["seconds_between_clips"] > 0
    assert found["latency_seconds"]["p50"] <= found["latency_seconds"]["p99"]


def test_a_refused_request_is_counted_with_its_reason(server):
    wrong = ClipKind(MODEL, "99x99")
    plan = plan_requests([wrong], clips=2, per_hour=None, minutes=None)
    sent = send_requests(server, plan)
    assert all(each.error and "multiples" in each.error for each in sent), sent


def test_the_command_measures_a_server_and_a_worker_for_two_tenants(tmp_path):
    """On a CPU, which the planner does not know: the reason is in the result, and the result in the file."""
    out = tmp_path / "service.json"
    options = [
        "--model",
        "miniature",
        "--clips",
        "3",
        "--rounds",
        "1",
        "--tenants",
        "2",
        "--output",
        str(out),
    ]
    clip = "size=64x64,seconds=0.5,steps=1,catalog=wan2.1-t2v-1.3b"
    environ = {"FILMGATE_PIPELINE__DEVICE": "cpu", "FILMGATE_STORE__MIN_FREE_BYTES": "0"}
    done = CliRunner(env=environ).invoke(
        app, ["bench", "service", *options, "--clip", clip, "--json"], catch_exceptions=False
    )
    found = json.loads(done.stdout)
    assert json.loads(out.read_text()) == found
    assert (found["clips"], found["failed"], found["tenants"]) == (3, 0, 2)
    assert found["seconds_between_clips"] > 0
    assert found["between_to_alone"] > 0
    assert found["planned"] == {"reason": "the planner's catalog has no GPU cpu"}


def test_a_database_with_tenants_is_refused_because_it_gives_the_test_no_key(tmp_path):
    (tmp_path / "used").mkdir()
    with closing(open_database(Settings().queue, tmp_path / "used")) as database:
        TenantRegistry(database).add(Tenant(TenantId("acme")))
    environ = {
        "FILMGATE_QUEUE__URL": f"sqlite:///{tmp_path / 'used' / DEFAULT_FILE}",
        "FILMGATE_MANAGEMENT__PORT": "0",
    }
    with (
        pytest.raises(UsageError, match="has tenants already; use an empty one"),
        started_server(["miniature"], tmp_path, environ),
    ):
        pass


def test_a_load_test_does_not_use_the_store_of_the_installation_whose_objects_it_would_delete(
    tmp_path, monkeypatch
):
    for name in ("STORE__URL", "STORE__KEYRING", "AUDIT__ANCHOR"):
        monkeypatch.setenv(f"FILMGATE_{name}", f"file://{tmp_path}/installation/{name}")
    monkeypatch.setenv("FILMGATE_QUEUE__WAKER", "sqs://installation.fifo")
    with started_server(["miniature"], tmp_path, {"FILMGATE_MANAGEMENT__PORT": "0"}) as server:
        assert {"objects", "keys"} <= {path.name for path in server.data.iterdir()}
        assert not (tmp_path / "installation").exists()


STARTS_A_SERVER = """
import sys, time
from pathlib import Path
from filmgate.load_test.server import started_server

with started_server(["miniature"], Path(sys.argv[1]), {"FILMGATE_MANAGEMENT__PORT": "0"}) as server:
    print(server.url, flush=True)
    time.sleep(600)
"""


def test_a_load_test_that_is_terminated_ends_its_server(tmp_path):
    command = [sys.executable, "-c", STARTS_A_SERVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as test:
        url = test.stdout.readline().strip()
        assert httpx.get(f"{url}/healthz").status_code == 200
        test.terminate()
        assert test.wait(120) == 128 + signal.SIGTERM
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_denoise_and_decode_alone_are_measured_without_the_service():
    settings = with_values(Settings(), {"pipeline.device": "cpu"})
    options = {"size": "64x64", "seconds": "0.5", "steps": 2}
    alone = measure_alone("miniature", options, rounds=1, settings=settings)
    assert (alone.size, alone.frames, alone.steps, alone.device) == ("64x64", 9, 2, "cpu")
    assert alone.denoise_seconds > 0
    assert alone.decode_seconds > 0
