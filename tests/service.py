"""A complete server in this process: real sockets, SQLite and encrypted files."""

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from filmgate.api.app import build_app
from filmgate.api.edge import Edge
from filmgate.api.http_server import listen, open_server
from filmgate.api.services import Services
from filmgate.jobs import Clip, Progress, Route, Stage, StageSeconds, TenantId, WorkerId
from filmgate.scheduling.base import AttemptResult, Offer
from filmgate.scheduling.metrics import QueueCollector, QueueTerms
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from filmgate.server import open_services
from filmgate.settings import Settings, with_values
from filmgate.store.base import ObjectName, clip_part, live_part, live_prefix
from filmgate.telemetry.untraced import NO_TRACER
from filmgate.tenants.base import Tenant
from tests.waiting import wait_until

# Flipbook with image input allowed, and the miniature model.
MODELS = Path(__file__).parent / "models.toml"
CLIP = bytes(range(256)) * 400
THUMBNAIL = b"\xff\xd8\xff thumbnail"
SPRITESHEET = b"\xff\xd8\xff spritesheet"
HAND = WorkerId("hand")


def write_cards(folder, side=64, frames=5, steps=2):
    """Write MODELS with these defaults for the clips of Flipbook; returns the path of the file."""
    cards = MODELS.read_text()
    smaller = {
        "[256, 256], m": f"[{side}, {side}], m",
        "33, step": f"{frames}, step",
        "10, min": f"{steps}, min",
    }
    for given, wanted in smaller.items():
        assert f"default = {given}" in cards
        cards = cards.replace(f"default = {given}", f"default = {wanted}")
    (folder / "models.toml").write_text(cards)
    return str(folder / "models.toml")


def settings_for(data, **given):
    """Settings of a test server: a free port, short intervals, no minimum of free disk space, no rates."""
    quick = {
        "data": data,
        "admission.models_file": str(MODELS),
        "api.port": 0,
        "api.watch_seconds": 0.02,
        "store.min_free_bytes": 0,
        "limits.tenant_requests_per_second": 0,
        "limits.address_requests_per_second": 0,
        "limits.failed_logins_per_minute": 0,
        "queue.backoff_seconds": 0.0,
        "admission.scale_from_zero": "*",
    }
    return with_values(Settings(), quick | {key.replace("__", "."): value for key, value in given.items()})


@dataclass
class Service:
    """A running server and its API key."""

    url: str
    key: str
    services: Services
    settings: Settings
    edge: Edge

    def client(self, key=None, **options):
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, **options)

    def add_tenant(self, name, **fields):
        return self.services.tenants.add(Tenant(TenantId(name), **fields)).secret

    def hand(self):
        return Hand(self.services)

    def cancel_waiting_jobs(self):
        for job in self.services.reader.snapshot().queued:
            self.services.queue.cancel(job.tenant_id, job.job_id)


@contextmanager
def running(settings, provider=None, tracer=NO_TRACER):
    """Serve with these settings until the block ends."""
    services = open_services(settings, provider, tracer=tracer).api
    registry = CollectorRegistry()
    registry.register(QueueCollector(services.reader, time.time, QueueTerms.of(settings)))
    listener = listen(settings.api)
    app = build_app(services, registry)
    server = open_server(app, settings.api, listener)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    scheme = "https" if settings.api.tls_certificate else "http"
    try:
        wait_until(lambda: server.started or not thread.is_alive(), interval=0.005)
        assert thread.is_alive()
        key = (settings.data / "local.key").read_text().strip()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        yield Service(url, key, services, settings, services.edge)
    finally:
        # As at the end of a process. A forced exit leaves connections to the garbage collector.
        for connection in list(server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.transport.close)
        server.should_exit = True
        server.force_exit = True
        thread.join(60)
        listener.close()


class Hand:
    """A worker that a test drives step by step."""

    def __init__(self, services):
        self.services = services
        self.lease = None
        self.fragments = 0

    def announce(self):
        """Send a heartbeat, so that forecasts have a live worker for the next 30 s."""
        registry = WorkerRegistry(self.services.queue._database)
        registry.heartbeat(WorkerStatus(HAND, Route.GPU, ("flipbook",), "cpu"))
        self.services.forecast.refresh()

    def take(self):
        self.lease = self.services.queue.lease(Offer(HAND, ("flipbook",), device="cpu"))
        assert self.lease is not None
        return self.lease.job

    def report(self, stage=Stage.DENOISE, done=0, total=10, fraction=0.0):
        return self.services.queue.heartbeat(self.lease, Progress(stage, done, total, fraction))

    def put(self, part, data):
        job = self.lease.job
        return self.services.store.put(ObjectName(job.tenant_id, job.id, part), [data])

    def fragment(self, number, data):
        self.put(live_part(self.lease.fence, number), data)
        self.fragments = number + 1

    def finish(self, clip=CLIP, *, is_tidy=False):
        stored = self.put(clip_part(self.lease.fence), clip)
        self.put("thumbnail.jpg", THUMBNAIL)
        self.put("spritesheet.jpg", SPRITESHEET)
        parts = Clip(
            clip_part(self.lease.fence),
            stored.size_bytes,
            stored.sha256,
            thumbnail="thumbnail.jpg",
            spritesheet="spritesheet.jpg",
            fragments=self.fragments,
        )
        measured = StageSeconds(text=0.1, denoise=1.0, decode=0.5, upload=0.1)
        job = self.services.queue.complete(self.lease, AttemptResult(parts, measured))
        if is_tidy:
            self.services.store.delete(job.tenant_id, job.id, live_prefix(self.lease.fence))
        return job

    def make(self, clip=CLIP):
        """Lease the next job and finish it."""
        self.take()
        self.report()
        return self.finish(clip)
