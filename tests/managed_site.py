"""A site whose jobs go to a provider: SQLite, encrypted files, and the managed worker in a thread."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace

import sqlalchemy as sa

from filmgate.database.schema import invocations
from filmgate.jobs import ManagedPolicy, Route, RouteReason, Routing, TenantId
from filmgate.providers import open_provider
from filmgate.providers.invocations import SqlInvocations
from filmgate.scheduling import open_reader
from filmgate.settings import ProviderSettings, QueueSettings, Settings, WorkerSettings
from filmgate.store.keys import open_keys
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from filmgate.worker_process import WorkerServices, build_managed_worker, opened_services
from tests.local_site import JobView
from tests.pattern_runner import MODEL
from tests.tickets import make_ticket

ACME = TenantId("acme")
ANYTHING = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
QUICK = WorkerSettings(heartbeat_seconds=0.2, progress_seconds=0.02, drain_seconds=2)
# No lease expires during a test, however slow the machine is.
QUEUE = QueueSettings(lease_seconds=60, backoff_seconds=0.05, poll_seconds=0.02)
WHY = Routing(RouteReason.DEADLINE, "the wait is too long", decided_at=1.0)


def bedrock_settings(bedrock, moto, bucket, **fields):
    given = {
        "kind": "bedrock",
        "model": "luma.ray-v2:0",
        "region": "us-west-2",
        "bucket": f"s3://{bucket}/clips",
        "endpoint": bedrock.url,
        "bucket_endpoint": moto,
        "poll_seconds": 0.05,
    }
    return ProviderSettings(**given | fields)


@dataclass
class ManagedSite(JobView):
    """One installation as its worker and its client see it."""

    settings: Settings
    services: WorkerServices
    reader: object
    invocations: object
    provider: object

    def enqueue(self, **spec):
        ticket = make_ticket(ACME, model=MODEL, **spec)
        return self.services.queue.enqueue(replace(ticket, route=Route.MANAGED, routing=WHY))

    @property
    def store(self):
        return self.services.store

    def record(self, job):
        return self.invocations.find(job.id)

    def age(self, seconds):
        """Move the start of every provider job this many seconds into the past."""
        with self.services.database.write() as connection:
            earlier = {name: invocations.c[name] - seconds for name in ("started_at", "updated_at")}
            connection.execute(sa.update(invocations).values(earlier))

    @contextmanager
    def worker(self, provider=None, **changes):
        settings = self.settings
        if changes:
            settings = settings.model_copy(update={"provider": settings.provider.model_copy(update=changes)})
        if provider is None:
            provider = open_provider(settings.provider) if "timeout_seconds" in changes else self.provider
        worker = build_managed_worker(self.services, settings, (MODEL,), provider)
        thread = threading.Thread(target=worker.run)
        thread.start()
        worker.thread = thread
        try:
            yield worker
        finally:
            worker.drain()
            thread.join(60)
            assert not thread.is_alive()


@contextmanager
def open_managed_site(folder, provider_settings, policy=ANYTHING, provider=None, database_url=""):
    queue = QUEUE.model_copy(update={"url": database_url})
    settings = Settings(data=folder, provider=provider_settings, worker=QUICK, queue=queue)
    with opened_services(settings) as services:
        TenantRegistry(services.database).add(Tenant(ACME, managed=policy))
        keys = open_keys(settings.store, folder)
        reader = open_reader(services.database, keys)
        provider = provider or open_provider(provider_settings)
        yield ManagedSite(settings, services, reader, SqlInvocations(services.database), provider)
