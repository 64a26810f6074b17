"""Only a dedicated tenant's own workers lease its jobs, on every database."""

from dataclasses import replace

import pytest

from filmgate.errors import BacklogGrown
from filmgate.jobs import Route, Routing, Share, TenantId
from filmgate.scheduling.base import Move
from filmgate.tenants.base import Tenant
from filmgate.tenants.registry import TenantRegistry
from tests.tickets import make_offer, make_ticket

BANK, ACME = TenantId("bank"), TenantId("acme")
SHARED, OWN = make_offer("shared"), make_offer("own", tenants=(BANK,))


@pytest.fixture
def bank(bench):
    """Marks the tenant as dedicated, or no longer."""
    registry = TenantRegistry(bench.database)
    registry.add(Tenant(BANK))

    def mark(is_dedicated):
        registry.update(BANK, lambda tenant: replace(tenant, is_dedicated=is_dedicated))

    return mark


def test_the_mark_applies_to_jobs_that_are_already_queued_and_can_be_taken_back(bench, bank):
    job = bench.queue.enqueue(make_ticket(BANK))
    bank(True)
    assert bench.queue.lease(SHARED) is None
    assert bench.queue.lease(make_offer("other", tenants=(ACME,))) is None
    bank(False)
    assert bench.queue.lease(SHARED).job.id == job.id


def test_a_tenant_that_was_marked_before_its_first_job_is_dedicated(bench, bank):
    bank(True)
    job = bench.queue.enqueue(make_ticket(BANK))
    assert bench.queue.lease(SHARED) is None
    assert bench.queue.lease(OWN).job.id == job.id


def test_a_new_quota_of_a_dedicated_tenant_applies_and_leaves_it_dedicated(bench, bank):
    bank(True)
    for _ in range(2):
        bench.queue.enqueue(make_ticket(BANK))
    registry = TenantRegistry(bench.database)
    registry.update(BANK, lambda tenant: replace(tenant, share=Share(max_running=1)))
    assert bench.queue.lease(SHARED) is None
    assert bench.queue.lease(OWN) is not None
    assert bench.queue.lease(OWN) is None


def test_a_job_lost_by_its_own_worker_waits_for_another_of_them(bench, bank):
    bank(True)
    job = bench.queue.enqueue(make_ticket(BANK))
    assert bench.queue.lease(OWN) is not None
    bench.clocks.pass_time(60)
    assert bench.queue.lease(SHARED) is None
    assert bench.queue.lease(replace(OWN, worker_id="own-2")).job.id == job.id


def test_a_wake_up_that_names_the_job_does_not_help_a_shared_worker(bench, bank):
    bank(True)
    job = bench.queue.enqueue(make_ticket(BANK))
    assert bench.queue._leasing.named(SHARED, job.id) is None
    assert bench.queue._leasing.named(OWN, job.id).job.id == job.id


def test_a_worker_with_tenants_leases_no_other_job_although_it_is_idle(bench):
    bench.queue.enqueue(make_ticket(ACME))
    assert bench.queue.lease(OWN) is None
    assert bench.queue.lease(make_offer(tenants=(BANK, ACME))).job.tenant_id == ACME


def test_a_provider_may_take_the_job_if_the_tenant_allows_it(bench, bank):
    bank(True)
    job = bench.queue.enqueue(make_ticket(BANK))
    bench.queue.reroute([Move(BANK, job.id, Route.MANAGED, Routing())])
    assert bench.queue.lease(make_offer("managed", route=Route.MANAGED)).job.id == job.id


def test_the_backlog_of_others_does_not_refuse_a_dedicated_tenant_nor_its_own_the_others(bench, bank):
    bank(True)
    bench.queue.enqueue(make_ticket(ACME, gpu_seconds=1000))
    bench.queue.enqueue(make_ticket(BANK, gpu_seconds=100))
    for tenant, backlog in ((BANK, 100), (ACME, 1000)):
        ticket = make_ticket(tenant, gpu_seconds=1)
        with pytest.raises(BacklogGrown):
            bench.queue.enqueue(replace(ticket, max_backlog_seconds=backlog - 1))
        assert bench.queue.enqueue(replace(ticket, max_backlog_seconds=backlog)).tenant_id == tenant


@pytest.mark.parametrize("waker", ["sqs"], indirect=True)
def test_with_sqs_workers_of_a_tenant_and_shared_ones_do_not_take_each_others_messages(bench, bank):
    bank(True)
    theirs, shared = bench.queue.enqueue(make_ticket(BANK)), bench.queue.enqueue(make_ticket(ACME))
    leases = [bench.queue.lease(offer) for offer in (SHARED, SHARED, OWN, OWN)]
    assert [lease.job.id for lease in leases if lease is not None] == [shared.id, theirs.id]
