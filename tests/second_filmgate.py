"""A second Filmgate in this process, for the first to fall back on: real sockets, the pattern runner."""

import threading
from contextlib import contextmanager
from pathlib import Path

from filmgate.jobs import WorkerId
from filmgate.settings import ProviderSettings, WorkerSettings
from filmgate.worker.loop import Worker
from filmgate.worker.pattern_runner import MODEL, PatternRunner
from tests.service import running, settings_for

CARDS = Path(__file__).parent / "pattern.toml"
QUICK = WorkerSettings(heartbeat_seconds=0.2, progress_seconds=0.02, poll_seconds=0.02, drain_seconds=1)


@contextmanager
def second_filmgate(folder, pace_seconds=0.0):
    """A running service whose worker renders patterns at this pace."""
    cards = {"admission.models_file": str(CARDS), "admission.default_model": MODEL}
    with running(settings_for(folder, **cards)) as service:
        stations = service.stations
        runner = PatternRunner(pace_seconds)
        worker = Worker(WorkerId("second"), runner, stations.queue, stations.store, QUICK)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield service
        finally:
            worker.drain()
            thread.join(60)


def fallback_to(service, **fields):
    """Settings of a first Filmgate that falls back on this one."""
    given = {"provider": "http", "url": f"{service.url}/v1", "api_key": service.key, "poll_seconds": 0.05}
    return ProviderSettings(**given | fields)
