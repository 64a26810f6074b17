"""The contract of a TenantRegistry: API keys are shown once, stored hashed and can be revoked."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from filmgate.audit.log import AuditLog, Query
from filmgate.audit.records import Actor, ActorKind
from filmgate.database.engine import Database
from filmgate.database.migration import migrate
from filmgate.errors import InvalidKey, TenantExists, TenantInUse, TenantNotFound, UsageError
from filmgate.jobs import ManagedPolicy, ScreeningAction, Share, TenantId
from filmgate.tenants.base import Scope, Tenant
from filmgate.tenants.local import ensure_local_tenant
from filmgate.tenants.registry import TenantRegistry
from tests.tickets import make_offer, make_ticket
from tests.waiting import wait_until

ACME = Tenant(
    id=TenantId("acme"),
    share=Share(weight=2.0, max_queued=10, max_running=2, max_gpu_seconds_per_day=3600.0),
    scopes=frozenset({Scope.READ}),
    certificate="CN=acme,O=Acme",
    screening={"personal_data": ScreeningAction.FLAG},
)


@pytest.fixture
def database(database_url):
    database = Database(database_url, clock=lambda: 1000.0)
    yield database
    database.close()


@pytest.fixture
def registry(database):
    return TenantRegistry(database)


def test_a_key_identifies_its_tenant_with_all_fields(registry):
    issued = registry.add(ACME)
    tenant = registry.authenticate(issued.secret)
    assert (tenant.id, tenant.share, tenant.scopes) == (ACME.id, ACME.share, ACME.scopes)
    assert (tenant.screening, tenant.created_at) == (ACME.screening, 1000.0)
    assert registry.authenticate_certificate("CN=acme,O=Acme") == tenant == registry.find(ACME.id)


def test_a_tenant_allows_no_managed_provider_until_its_policy_is_set(registry):
    issued = registry.add(ACME)
    assert registry.authenticate(issued.secret).managed == ManagedPolicy()
    policy = ManagedPolicy(is_allowed=True, regions=("us-west-2",), max_usd_per_clip=2.5, may_resize=True)
    assert registry.update(ACME.id, lambda old: replace(old, managed=policy)).managed == policy
    assert registry.authenticate(issued.secret) == registry.find(ACME.id)
    assert registry.find(ACME.id).managed == policy
    with pytest.raises(TenantNotFound):
        registry.update(TenantId("unknown"), lambda old: replace(old, managed=policy))


def test_screening_is_replaced_as_a_whole(registry):
    issued = registry.add(ACME)
    screening = {"violence": ScreeningAction.REJECT}
    assert registry.update(ACME.id, lambda old: replace(old, screening=screening)).screening == screening
    assert registry.authenticate(issued.secret).screening == screening
    with pytest.raises(TenantNotFound):
        registry.update(TenantId("unknown"), lambda old: replace(old, screening=screening))


def test_unknown_rotated_and_disabled_keys_get_the_same_error(registry):
    first = registry.add(ACME)
    second = registry.rotate(ACME.id)
    assert registry.authenticate(second.secret).id == ACME.id
    bare = second.secret.removeprefix("fg_")
    malformed = ["", "fg_", "fg__", "x", bare, f"xx_{bare}", second.secret[:-1], second.secret + "0"]
    for secret in malformed:
        with pytest.raises(InvalidKey):
            registry.authenticate(secret)
    registry.disable(ACME.id)
    registry.disable(ACME.id)
    of_keys, of_certificates = set(), set()
    for secret in [*malformed, first.secret, second.secret]:
        with pytest.raises(InvalidKey) as caught:
            registry.authenticate(secret)
        of_keys.add(str(caught.value))
    for subject in ("CN=acme,O=Acme", "CN=unknown"):
        with pytest.raises(InvalidKey) as caught:
            registry.authenticate_certificate(subject)
        of_certificates.add(str(caught.value))
    assert (len(of_keys), len(of_certificates)) == (1, 1)
    assert not registry.find(ACME.id).may(Scope.READ)


def test_a_key_is_stored_only_as_a_digest(registry, database):
    issued = registry.add(ACME)
    token = issued.secret.rpartition("_")[2]
    with database.read() as connection:
        stored = repr(connection.exec_driver_sql("SELECT * FROM api_keys").all())
    assert token not in stored
    assert token not in repr(issued)


def test_tenant_names_are_unique_and_restricted(registry):
    registry.add(ACME)
    with pytest.raises(TenantExists):
        registry.add(ACME)
    for name in ("", "UPPER", "../x", "a" * 64, "a b", "a/b"):
        with pytest.raises(UsageError):
            registry.add(Tenant(id=TenantId(name)))
    for verb in (registry.find, registry.rotate, registry.disable):
        with pytest.raises(TenantNotFound, match="tenant list"):
            verb(TenantId("unknown"))
    assert [tenant.id for tenant in registry.tenants()] == ["acme"]


def test_a_scope_grants_itself_and_admin_grants_all():
    reader = Tenant(id=TenantId("r"), scopes=frozenset({Scope.READ}))
    admin = Tenant(id=TenantId("a"), scopes=frozenset({Scope.ADMIN}))
    assert [reader.may(scope) for scope in Scope] == [False, True, False]
    assert all(admin.may(scope) for scope in Scope)


def test_the_first_start_creates_the_local_tenant_and_the_second_does_not(registry, tmp_path):
    path = ensure_local_tenant(registry, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert registry.authenticate(path.read_text().strip()).id == "local"
    assert ensure_local_tenant(registry, tmp_path) is None


def test_older_keys_stay_valid_during_the_overlap(database_url):
    now = 1000.0
    database = Database(database_url, clock=lambda: now)
    migrate(database)
    registry = TenantRegistry(database)
    first = registry.add(Tenant(TenantId("acme"))).secret
    second = registry.rotate(TenantId("acme"), overlap_seconds=60).secret
    now += 59
    third = registry.rotate(TenantId("acme"), overlap_seconds=600).secret
    assert {registry.authenticate(secret).id for secret in (first, second, third)} == {"acme"}
    now += 1  # the first key ends when its own overlap does
    with pytest.raises(InvalidKey):
        registry.authenticate(first)
    assert registry.authenticate(second).id == registry.authenticate(third).id
    now += 600
    with pytest.raises(InvalidKey):
        registry.authenticate(second)
    only = registry.rotate(TenantId("acme")).secret
    with pytest.raises(InvalidKey):
        registry.authenticate(third)
    assert registry.authenticate(only).id == "acme"
    database.close()


def test_a_tenant_is_changed_enabled_and_deleted(registry):
    issued = registry.add(ACME)
    registry.add(Tenant(TenantId("globex"), certificate="CN=globex"))
    share = Share(weight=5.0)
    changed = registry.update(
        ACME.id, lambda old: replace(old, share=share, id=TenantId("other"), created_at=0)
    )
    assert (changed.id, changed.created_at, changed.share) == (ACME.id, 1000.0, share)
    assert registry.authenticate(issued.secret) == changed
    with pytest.raises(TenantExists, match="another tenant has this certificate"):
        registry.update(ACME.id, lambda old: replace(old, certificate="CN=globex"))
    with pytest.raises(TenantInUse, match="disable it first"):
        registry.delete(ACME.id)
    registry.disable(ACME.id)
    assert registry.update(ACME.id, lambda old: replace(old, is_enabled=True)).is_enabled
    registry.disable(ACME.id)
    registry.delete(ACME.id)
    for call in (registry.find, registry.delete, lambda name: registry.update(name, lambda old: old)):
        with pytest.raises(TenantNotFound):
            call(ACME.id)
    with pytest.raises(InvalidKey):
        registry.authenticate(issued.secret)


def is_lock_awaited(database):
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with database.read() as connection:
        return connection.exec_driver_sql(waiting).scalar_one() > 0


def test_concurrent_changes_of_a_tenant_are_both_kept(registry, database):
    """A new weight must not enable a tenant again that is disabled at the same time."""
    registry.add(ACME)
    is_read = threading.Event()

    def disable(old):
        is_read.set()
        return replace(old, is_enabled=False)

    with ThreadPoolExecutor(1) as pool:

        def raise_weight(old):
            pool.submit(registry.update, ACME.id, disable)
            # Without a lock, the other change reads the tenant now. SQLite has one writer at a time.
            wait_until(lambda: database.is_sqlite or is_read.is_set() or is_lock_awaited(database))
            return replace(old, share=Share(weight=5.0))

        registry.update(ACME.id, raise_weight)
    changed = registry.find(ACME.id)
    assert (changed.share.weight, changed.is_enabled) == (5.0, False)


def set_share(registry, tenant_id, **fields):
    registry.update(tenant_id, lambda old: replace(old, share=replace(old.share, **fields)))


def test_a_new_max_running_applies_to_jobs_that_are_already_queued(bench):
    registry = TenantRegistry(bench.database)
    registry.add(Tenant(ACME.id))
    for _ in range(3):
        bench.queue.enqueue(make_ticket(ACME.id))
    set_share(registry, ACME.id, max_running=1)
    assert [bench.queue.lease(make_offer()) is not None for _ in range(2)] == [True, False]
    set_share(registry, ACME.id, max_running=2)
    assert [bench.queue.lease(make_offer()) is not None for _ in range(2)] == [True, False]
    set_share(registry, ACME.id, max_running=None)
    assert bench.queue.lease(make_offer()) is not None


def test_a_request_that_began_before_a_change_does_not_undo_it(bench):
    registry = TenantRegistry(bench.database)
    registry.add(Tenant(ACME.id))
    began = [make_ticket(ACME.id) for _ in range(2)]
    set_share(registry, ACME.id, max_running=1)
    for ticket in began:
        bench.queue.enqueue(ticket)
    assert [bench.queue.lease(make_offer()) is not None for _ in range(2)] == [True, False]


def test_a_new_weight_applies_to_jobs_that_are_already_queued(bench):
    registry = TenantRegistry(bench.database)
    names = [TenantId("acme"), TenantId("globex")]
    for name in names:
        registry.add(Tenant(name))
        for _ in range(9):
            bench.queue.enqueue(make_ticket(name))
    set_share(registry, names[0], weight=2.0)
    leased = Counter(bench.queue.lease(make_offer()).job.tenant_id for _ in range(9))
    assert leased == {"acme": 6, "globex": 3}


def test_every_change_of_a_tenant_is_in_its_audit_log(registry, database):
    operator = Actor(ActorKind.KEY, "0123")
    first = registry.add(ACME, operator)
    registry.update(
        ACME.id, lambda old: replace(old, scopes=frozenset({Scope.ADMIN}), certificate=None), operator
    )
    registry.update(ACME.id, lambda old: old, operator)  # changes nothing
    second = registry.rotate(ACME.id, 60.0, operator)
    registry.disable(ACME.id, operator)
    registry.delete(ACME.id, operator)
    records = AuditLog(database).page(Query(ACME.id))
    details = [json.loads(record.details) for record in records]
    assert all((found.pop("by"), found.pop("key")) == ("key", "0123") for found in details)
    assert [record.action for record in records] == [
        "tenant_created",
        "tenant_changed",
        "key_rotated",
        "tenant_changed",
        "tenant_deleted",
    ]
    created, changed, rotated, disabled, deleted = details
    assert (created["issued_key"], created["values"]["scopes"]) == (first.secret.split("_")[1], ["read"])
    assert changed == {"values": {"scopes": ["admin"], "certificate": None}}
    assert rotated == {"issued_key": second.secret.split("_")[1], "overlap_seconds": 60.0}
    assert (disabled, deleted) == ({"values": {"is_enabled": False}}, {})
    stored = repr(records)
    assert not any(issued.secret.split("_")[2] in stored for issued in (first, second))


def test_a_change_that_is_rejected_leaves_no_record(registry, database):
    registry.add(ACME)
    with pytest.raises(TenantExists):
        registry.add(replace(ACME, id=TenantId("globex")))
    with pytest.raises(TenantInUse):
        registry.delete(ACME.id)
    assert [record.action for record in AuditLog(database).page(Query())] == ["tenant_created"]
