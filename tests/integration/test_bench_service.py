"""`filmgate bench service` against a real server and a worker."""

import threading

import pytest

from filmgate.cli.load_test.mix import ClipKind, plan_requests
from filmgate.cli.load_test.report import Measured, figures
from filmgate.cli.load_test.requests import send_requests, warm_up
from filmgate.cli.load_test.server import Server
from filmgate.jobs import WorkerId
from filmgate.pipeline.bench.alone import measure_alone
from filmgate.settings import Settings, WorkerSettings, with_values
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
        yield Server(service.url, service.key)
        worker.drain()
        thread.join(60)


def test_a_mix_of_clips_is_sent_and_every_link_is_measured(server):
    kinds = [ClipKind(MODEL, "128x128", 1.0, 2), ClipKind(MODEL, "64x64", 0.5, 4)]
    assert [each.error for each in warm_up(server, kinds)] == [None, None]
    plan = plan_requests(kinds, clips=5, per_hour=None, minutes=None)
    sent = send_requests(server, plan)
    found = figures(Measured(plan, sent, {}, None), dict.fromkeys(kinds, 0.05), 1.0)
    assert (found["clips"], found["failed"]) == (5, 0)
    assert found["seconds_between_clips"] > 0
    assert found["latency_seconds"]["p50"] <= found["latency_seconds"]["p99"]


def test_a_refused_request_is_counted_with_its_reason(server):
    wrong = ClipKind(MODEL, "99x99")
    plan = plan_requests([wrong], clips=2, per_hour=None, minutes=None)
    sent = send_requests(server, plan)
    assert all(each.error and "multiples" in each.error for each in sent), sent


def test_denoise_and_decode_alone_are_measured_without_the_service():
    settings = with_values(Settings(), {"pipeline.device": "cpu"})
    options = {"size": "64x64", "seconds": "0.5", "steps": 2}
    alone = measure_alone("miniature", options, rounds=1, settings=settings)
    assert (alone.size, alone.frames, alone.steps, alone.device) == ("64x64", 9, 2, "cpu")
    assert alone.denoise_seconds > 0
    assert alone.decode_seconds > 0
