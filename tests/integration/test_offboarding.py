"""Forgetting a tenant destroys its key; deleting it removes everything but the counters."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from filmgate.aws.tenant_key import KeyTemplate
from filmgate.cli import app
from filmgate.database.backup import end_leases
from filmgate.errors import (
    InvalidKey,
    JobActive,
    ObjectCorrupt,
    ObjectNotFound,
    SettingsError,
    UsageError,
)
from filmgate.jobs import JobState, TenantId
from filmgate.maintenance.offboarding import opened_offboarding
from filmgate.server import open_services
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.keys.kms import KmsKeyring
from filmgate.tenants.base import Tenant
from tests.service import settings_for
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

ACME, GLOBEX = TenantId("acme"), TenantId("globex")


@pytest.fixture
def settings(tmp_path):
    return settings_for(tmp_path / "data")


@pytest.fixture
def services(settings):
    services = open_services(settings)
    for tenant_id in (ACME, GLOBEX):
        services.api.tenants.add(Tenant(tenant_id))
    yield services
    services.queue._database.close()


def store_clip(services, tenant_id):
    services.queue.enqueue(make_ticket(tenant_id))
    lease = services.queue.lease(make_offer())
    name = ObjectName(tenant_id, lease.job.id, "clip-1.mp4")
    services.api.store.put(name, [b"frames"])
    services.queue.complete(lease, RESULT)
    return name


def test_a_deleted_tenant_leaves_no_job_no_object_and_no_key(settings, services, tmp_path):
    secret = services.api.tenants.rotate(ACME).secret
    clip, other = store_clip(services, ACME), store_clip(services, GLOBEX)
    services.queue.enqueue(make_ticket(ACME))
    encrypted = settings.data / "objects" / str(clip)
    kept = tmp_path / "copy"
    kept.write_bytes(encrypted.read_bytes())
    with opened_offboarding(settings) as offboarding:
        done = offboarding.delete(ACME)
    assert (done.jobs, done.objects) == (2, 1)
    fresh = open_services(settings)
    with pytest.raises(InvalidKey):
        fresh.api.tenants.authenticate(secret)
    with pytest.raises(ObjectNotFound):
        fresh.api.store.stat(clip)
    assert fresh.api.reader.page(ACME).jobs == ()
    assert b"".join(fresh.api.store.read(other)) == b"frames"
    # A copy of the object from a backup stays unreadable, also after the name was given to a new tenant.
    fresh.api.tenants.add(Tenant(ACME))
    fresh.queue.enqueue(make_ticket(ACME))
    encrypted.parent.mkdir(parents=True)
    encrypted.write_bytes(kept.read_bytes())
    with pytest.raises(ObjectCorrupt):
        list(fresh.api.store.read(clip))
    fresh.queue._database.close()


def test_a_tenant_is_forgotten_only_after_its_running_jobs_have_ended(settings, services):
    services.queue.enqueue(make_ticket(ACME))
    lease = services.queue.lease(make_offer())
    with opened_offboarding(settings) as opened:
        offboarding = replace(opened, wait_seconds=0.0)
        with pytest.raises(JobActive, match="1 jobs of acme are still being cancelled"):
            offboarding.forget(ACME)
        assert (settings.data / "keys" / "acme.key").exists()
        services.queue.complete(lease, RESULT)
        assert offboarding.forget(ACME).jobs == 1
    assert not (settings.data / "keys" / "acme.key").exists()
    assert not services.api.tenants.find(ACME).is_enabled


@pytest.mark.parametrize(("verb", "jobs"), [("forget", 1), ("delete", 0)])
def test_a_request_that_is_under_way_is_not_accepted_after_its_tenant(tmp_path, database_url, verb, jobs):
    """Its API key was checked before. A new tenant of that name would see the clip."""
    settings = settings_for(tmp_path / "data", queue__url=database_url)
    services = open_services(settings)
    services.api.tenants.add(Tenant(ACME))
    for _ in range(jobs):  # the second request needs no read of the tenant's key
        services.queue.enqueue(make_ticket(ACME))
    with opened_offboarding(settings) as offboarding:
        assert getattr(offboarding, verb)(ACME).jobs == jobs
    with pytest.raises(InvalidKey, match="nothing was accepted"):
        services.queue.enqueue(make_ticket(ACME))
    assert services.api.reader.page(ACME).jobs == ()
    if verb == "forget":
        services.api.tenants.update(ACME, lambda tenant: replace(tenant, is_enabled=True))
    else:
        services.api.tenants.add(Tenant(ACME))
    job, fresh = services.queue.enqueue(make_ticket(ACME)), open_services(settings)
    assert fresh.api.reader.find(ACME, job.id).spec.prompt == PROMPT
    for opened in (services, fresh):
        opened.queue._database.close()


def test_a_tenant_whose_key_is_shared_keeps_its_jobs(settings, services):
    """The key cannot be destroyed: nothing may change before that is known."""
    job = services.queue.enqueue(make_ticket(ACME))
    shared = DataKeys(KmsKeyring(SimpleNamespace(), KeyTemplate("alias/all")))
    with (
        opened_offboarding(settings) as opened,
        pytest.raises(SettingsError, match="share the key alias/all"),
    ):
        replace(opened, keys=shared).delete(ACME)
    assert services.api.tenants.find(ACME).is_enabled
    assert services.api.reader.find(ACME, job.id).state is JobState.QUEUED


def test_a_tenant_whose_job_lost_its_worker_can_be_deleted_without_a_worker(settings, services):
    services.queue.enqueue(make_ticket(ACME))
    assert services.queue.lease(make_offer()) is not None
    with opened_offboarding(settings) as opened:
        assert end_leases(opened.database) == 1
        assert replace(opened, wait_seconds=0.0).delete(ACME).jobs == 1


def test_a_tenant_with_an_unusable_key_can_be_deleted(settings, services):
    services.queue.enqueue(make_ticket(ACME))
    (settings.data / "keys" / "acme.key").chmod(0o644)
    with opened_offboarding(settings) as offboarding:
        assert offboarding.delete(ACME).jobs == 1
    assert [tenant.id for tenant in services.api.tenants.tenants()] == ["globex", "local"]


def test_the_commands_ask_for_a_confirmation(settings, services):
    def tenant(*arguments):
        return CliRunner().invoke(app, ["tenant", *arguments], env={"FILMGATE_DATA": str(settings.data)})

    refused = tenant("delete", "acme").exception
    assert isinstance(refused, UsageError)
    assert refused.option == "--yes"
    assert "0 jobs and 0 objects deleted" in tenant("forget", "acme", "--yes").stdout
    assert tenant("delete", "acme", "--yes", "--json").exit_code == 0
    assert [found.id for found in services.api.tenants.tenants()] == ["globex", "local"]
