"""A second Filmgate that the first one uses as its provider. Its worker renders patterns."""

import signal
import threading
from contextlib import contextmanager
from pathlib import Path

from filmgate.jobs import WorkerId
from filmgate.settings import ProviderSettings, WorkerSettings
from filmgate.telemetry.untraced import NO_TRACER
from filmgate.worker.health import WorkerTelemetry
from filmgate.worker.loop import Worker
from filmgate.worker.tracing import WorkerTracing
from tests.forks import start_process
from tests.pattern_runner import MODEL, PatternRunner
from tests.server_process import ServerProcess, free_port
from tests.service import running, settings_for

ROOT = Path(__file__).parents[1]
CARDS = ROOT / "tests/pattern.toml"
QUICK = WorkerSettings(heartbeat_seconds=0.2, progress_seconds=0.02, drain_seconds=1)
CARDS_ENVIRON = {"FILMGATE_ADMISSION__MODELS_FILE": str(CARDS), "FILMGATE_ADMISSION__DEFAULT_MODEL": MODEL}
QUICK_ENVIRON = {
    "FILMGATE_QUEUE__LEASE_SECONDS": "2",
    "FILMGATE_WORKER__HEARTBEAT_SECONDS": "0.5",
    "FILMGATE_QUEUE__POLL_SECONDS": "0.05",
}


@contextmanager
def second_filmgate(folder, pace_seconds=0.0, tracer=NO_TRACER):
    """A server and a worker in this process; the worker takes `pace_seconds` per step."""
    cards = {"admission.models_file": str(CARDS), "admission.default_model": MODEL}
    with running(settings_for(folder, **cards), tracer=tracer) as service:
        services = service.services
        runner = PatternRunner(pace_seconds)
        parts = {"queue": services.queue, "store": services.store, "settings": QUICK}
        telemetry = WorkerTelemetry(tracing=WorkerTracing(tracer))
        worker = Worker(WorkerId("second"), runner, **parts, telemetry=telemetry)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield service
        finally:
            worker.drain()
            thread.join(60)


class SecondFilmgate:
    """A server process and a worker process, which tests kill and start again."""

    def __init__(self, folder, pace="0.02"):
        self.folder, self.pace, self.port = folder, pace, free_port()
        self.server = self.worker = None
        self.start()
        self.key = self.server.key

    def start(self):
        options = ("--no-worker", "--port", self.port)
        self.server = ServerProcess(self.folder, *options, **CARDS_ENVIRON)
        self.url = self.server.url
        environ = QUICK_ENVIRON | {"FILMGATE_DATA": str(self.folder / "data")}
        worker = ("tests.chaos.pattern_worker", f"--pace={self.pace}")
        self.worker = start_process(*worker, environ=environ, log=self.server.log)

    def kill(self):
        for process in (self.server.process, self.worker):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait(60)


def endpoint_settings(service, **fields):
    """Settings of a Filmgate that uses this service as its provider."""
    given = {"kind": "http", "url": f"{service.url}/v1", "api_key": service.key, "poll_seconds": 0.05}
    return ProviderSettings(**given | fields)
