"""The audit log on both databases: one chain per tenant, in the transaction of what it records."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from filmgate.audit.anchors import FileAnchor
from filmgate.audit.checkpoints import Checkpoints
from filmgate.audit.log import AuditLog, Query
from filmgate.audit.records import ORIGIN, Action, Actor, ActorKind, Entry
from filmgate.audit.signing import LocalSigner
from filmgate.audit.verify import verify
from filmgate.database.schema import audit_heads, audit_records
from filmgate.errors import QuotaExceeded, RunError
from filmgate.jobs import Failure, Reason, Share, TenantId
from filmgate.scheduling.base import AttemptFailure, AttemptResult, Provenance
from tests.tickets import PROMPT, RESULT, make_offer, make_ticket

ACME = TenantId("acme")
YEAR = 365.25 * 86400
ALICE = Actor(ActorKind.KEY, "0123abcd", "alice")


@pytest.fixture
def log(bench):
    return AuditLog(bench.database)


@pytest.fixture
def checkpoints(bench, tmp_path):
    anchor = FileAnchor(tmp_path / "anchors" / "heads.jsonl")
    (tmp_path / "anchors").mkdir()
    return Checkpoints(bench.database, LocalSigner(b"k" * 32), anchor, 7 * YEAR)


def actions(log, job_id=None):
    return [record.action for record in log.records(Query(job_id=job_id))]


def details(log, action):
    found = [record for record in log.records() if record.action == action]
    return json.loads(found[-1].details)


def is_intact(log):
    return verify(log.records(), log.heads()).is_intact


def test_the_life_of_a_job_is_recorded(queue, log):
    job = queue.enqueue(make_ticket(seed=7), ALICE)
    first = queue.lease(make_offer())
    failure = Failure(Reason.OUT_OF_MEMORY, "the GPU has no memory left")
    queue.fail_attempt(first, AttemptFailure(failure, uses_attempt=False))
    lease = queue.lease(make_offer("worker-2", versions={"flipbook": "77ab"}))
    provenance = Provenance("GPU-1234", "i-0abc")
    queue.complete(lease, replace(RESULT, provenance=provenance))
    queue.remove(ACME, job.id, ALICE)
    assert actions(log, job.id) == ["created", "started", "requeued", "started", "completed", "deleted"]
    created, completed = details(log, "created"), details(log, "completed")
    assert (created["by"], created["key"], created["user"]) == ("key", "0123abcd", "alice")
    assert created["screening"] == "allow"
    assert (completed["version"], completed["gpu"], completed["instance"]) == ("77ab", "GPU-1234", "i-0abc")
    assert (completed["worker"], completed["seed"], completed["spec"]["steps"]) == ("worker-2", 7, 8)
    assert details(log, "deleted")["user"] == "alice"
    assert is_intact(log)


def test_no_record_contains_the_prompt_and_its_hmac_is_the_tenants(queue, log):
    for tenant in ("acme", "globex", "acme"):
        queue.enqueue(make_ticket(tenant))
    records = [record for record in log.records() if record.action == "created"]
    assert not [record for record in records if PROMPT in record.details]
    hmacs = [json.loads(record.details)["prompt_hmac"] for record in records]
    assert len(hmacs) == 3
    assert hmacs[0] == hmacs[1] != hmacs[2]


def test_a_clip_is_found_by_its_digest_after_its_deletion(queue, log):
    job = queue.enqueue(make_ticket())
    queue.complete(queue.lease(make_offer()), RESULT)
    queue.remove(ACME, job.id)
    found = log.page(Query(clip_sha256=RESULT.clip.sha256))
    assert {record.job_id for record in found} == {job.id}
    assert found[0].action == "completed"


def test_a_rejected_job_leaves_no_record(queue, log):
    """The record is in the transaction of the change: both or neither."""
    queue.enqueue(make_ticket(share=Share(max_queued=1)))
    with pytest.raises(QuotaExceeded):
        queue.enqueue(make_ticket(share=Share(max_queued=1)))
    assert actions(log) == ["created"]
    assert is_intact(log)


def test_a_cancelled_job_names_who_cancelled_it(queue, log):
    job = queue.enqueue(make_ticket())
    queue.cancel(ACME, job.id, ALICE)
    queue.cancel(ACME, job.id, ALICE)
    assert actions(log) == ["created", "cancelled", "failed"]
    assert details(log, "cancelled")["user"] == "alice"
    assert details(log, "failed")["reason"] == "cancelled"


def test_concurrent_writers_keep_one_chain(queue, log):
    start = threading.Barrier(4)

    def work(number):
        start.wait(30)
        for _ in range(6):
            if number % 2:
                queue.enqueue(make_ticket())
            else:
                log.record(ACME, Entry(Action.READ, None, ALICE))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert [record.number for record in log.records()] == list(range(1, 25))
    assert is_intact(log)


def test_a_checkpoint_signs_and_anchors_moved_heads_once(queue, log, checkpoints, tmp_path):
    queue.enqueue(make_ticket())
    queue.enqueue(make_ticket("globex"))
    assert checkpoints.run() == 2
    assert checkpoints.run() == 0
    heads = log.heads()
    assert all(head.signature and head.signed_number == head.number for head in heads)
    anchored = list(FileAnchor(tmp_path / "anchors" / "heads.jsonl").heads())
    assert [head.signature for head in anchored] == [head.signature for head in heads]
    result = verify(log.records(), heads, public_key=LocalSigner(b"k" * 32).public_key, anchors=anchored)
    assert result.is_intact
    assert (result.unsigned, result.anchored) == (0, 2)


def test_a_changed_chain_is_not_signed_and_fails_the_run(bench, queue, log, checkpoints):
    """A failed run is counted, which raises FilmgateAuditCheckpointFailing."""
    queue.enqueue(make_ticket())
    queue.enqueue(make_ticket("globex"))
    with bench.database.write() as connection:
        change = sa.update(audit_records).where(audit_records.c.tenant_id == ACME)
        connection.execute(change.values(details='{"by":"nobody"}'))
    with pytest.raises(RunError, match="the audit log was changed"):
        checkpoints.run()
    assert [bool(head.signature) for head in log.heads()] == [False, True]


def rewrite(bench, log, **head):
    """Replace acme's records by a chain that is consistent in itself, as a database user could."""
    previous = ORIGIN
    with bench.database.write() as connection:
        for record in list(log.records(Query(ACME))):
            forged = replace(record, details='{"by":"nobody"}')
            previous = forged.chain(previous)
            own = (audit_records.c.tenant_id == ACME, audit_records.c.number == record.number)
            values = {"details": forged.details, "hash": previous}
            connection.execute(sa.update(audit_records).where(*own).values(values))
        own = audit_heads.c.tenant_id == ACME
        connection.execute(sa.update(audit_heads).where(own).values({"hash": previous} | head))
    return previous


@pytest.mark.parametrize("signed_number", [0, 2])
def test_a_forged_chain_without_a_signature_is_named_and_never_signed(
    bench, queue, log, checkpoints, signed_number
):
    for _ in range(2):
        queue.enqueue(make_ticket())
    checkpoints.run()
    newest = rewrite(bench, log, signed_number=signed_number, signature="")
    with bench.database.write() as connection:
        connection.execute(sa.update(audit_heads).values(signed_hash=newest if signed_number else ORIGIN))
    key = LocalSigner(b"k" * 32).public_key
    result = verify(log.records(), log.heads(), public_key=key)
    assert result.unsigned == 2
    assert result.is_intact == (signed_number == 0)
    with pytest.raises(RunError, match="the audit log was changed"):
        checkpoints.run()
    assert log.heads()[0].signature == ""


def test_a_chain_with_an_older_signed_head_is_never_signed(bench, queue, log, checkpoints):
    """A database user restores an old head, which was signed, and replaces the records after it."""
    queue.enqueue(make_ticket())
    checkpoints.run()
    names = ("number", "hash", "signed_number", "signed_hash", "signed_at", "signature")
    older = {name: getattr(log.heads()[0], name) for name in names}
    queue.enqueue(make_ticket())
    checkpoints.run()
    with bench.database.write() as connection:
        connection.execute(sa.delete(audit_records).where(audit_records.c.number > 1))
        connection.execute(sa.update(audit_heads).values(older))
    queue.enqueue(make_ticket(seed=99))
    with pytest.raises(RunError, match="the audit log was changed"):
        checkpoints.run()
    assert log.heads()[0].signed_number == 1


def test_a_head_without_its_signature_is_signed_again(bench, queue, log, checkpoints):
    queue.enqueue(make_ticket())
    checkpoints.run()
    with bench.database.write() as connection:
        connection.execute(sa.update(audit_heads).values(signature="AAAA"))
    assert checkpoints.run() == 1
    assert verify(log.records(), log.heads(), public_key=LocalSigner(b"k" * 32).public_key).is_intact


def test_records_that_were_deleted_too_early_are_never_signed(bench, queue, log, checkpoints):
    """A database user claims that retention deleted the first record."""
    queue.enqueue(make_ticket())
    checkpoints.run()
    queue.enqueue(make_ticket())
    checkpoints.run()
    first = next(log.records())
    with bench.database.write() as connection:
        connection.execute(sa.delete(audit_records).where(audit_records.c.number == 1))
        base = {"base_number": 1, "base_hash": first.hash, "signature": ""}
        connection.execute(sa.update(audit_heads).values(base))
    with pytest.raises(RunError, match="the audit log was changed"):
        checkpoints.run()
    assert log.heads()[0].signature == ""


def test_every_flipped_byte_in_the_database_is_named(bench, queue, log):
    queue.enqueue(make_ticket())
    queue.complete(queue.lease(make_offer()), RESULT)
    texts = ("action", "job_id", "clip_sha256", "details", "hash")
    record = list(log.records())[2]
    for name in texts:
        value = getattr(record, name)
        for place in range(0, len(value), max(len(value) // 5, 1)):
            flipped = value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :]
            own = sa.update(audit_records).where(audit_records.c.number == 3)
            with bench.database.write() as connection:
                connection.execute(own.values({name: flipped}))
            faults = verify(log.records(), log.heads()).faults
            with bench.database.write() as connection:
                connection.execute(own.values({name: value}))
            assert {fault.number for fault in faults} == {3}
    assert is_intact(log)


def test_a_byte_that_is_not_utf_8_is_refused_or_named(bench, queue, log):
    queue.enqueue(make_ticket())
    if not bench.database.is_sqlite:
        with (
            pytest.raises(sa.exc.DataError, match="invalid byte sequence"),
            bench.database.write() as connection,
        ):
            connection.exec_driver_sql("UPDATE audit_records SET details = convert_from('\\x7bff7d', 'UTF8')")
        return
    with bench.database.write() as connection:
        connection.exec_driver_sql("UPDATE audit_records SET details = CAST(X'7BFF7D' AS TEXT)")
    assert [fault.number for fault in verify(log.records(), log.heads()).faults] == [1]


def test_records_past_retention_are_deleted_and_the_rest_verifies(bench, queue, log, checkpoints, clocks):
    queue.enqueue(make_ticket())
    checkpoints.run()
    clocks.pass_time(7 * YEAR + 1)
    queue.enqueue(make_ticket())
    checkpoints.run()
    assert [record.number for record in log.records()] == [2]
    head = log.heads()[0]
    assert (head.base_number, head.signed_number) == (1, 2)
    assert verify(log.records(), [head], public_key=LocalSigner(b"k" * 32).public_key).is_intact


def test_only_signed_and_intact_records_are_deleted(bench, queue, log, checkpoints, clocks):
    """Retention would destroy the proof that they were changed."""
    queue.enqueue(make_ticket())
    queue.enqueue(make_ticket("globex"))
    checkpoints.run()
    clocks.pass_time(1)
    queue.enqueue(make_ticket("globex"))
    with bench.database.write() as connection:
        for tenant, number in ((ACME, 1), ("globex", 2)):
            own = (audit_records.c.tenant_id == tenant, audit_records.c.number == number)
            connection.execute(sa.update(audit_records).where(*own).values(details='{"by":"nobody"}'))
    clocks.pass_time(7 * YEAR + 1)
    for _ in range(2):
        with pytest.raises(RunError, match="the audit log was changed"):
            checkpoints.run()
    assert [(record.tenant_id, record.number) for record in log.records()] == [
        ("acme", 1), ("globex", 1), ("globex", 2),
    ]  # fmt: skip


def test_a_move_to_another_route_is_recorded(queue, log):
    from filmgate.jobs import Route, RouteReason, Routing
    from filmgate.scheduling.base import Move

    job = queue.enqueue(make_ticket())
    routing = Routing(RouteReason.DEADLINE, provider="bedrock", provider_model="nova-reel", usd=0.5)
    assert queue.reroute([Move(ACME, job.id, Route.MANAGED, routing)]) == 1
    assert details(log, "rerouted")["provider"] == "bedrock"
    result = AttemptResult(RESULT.clip, RESULT.measured)
    lease = queue.lease(make_offer(route=Route.MANAGED))
    queue.complete(lease, result)
    assert details(log, "completed")["usd"] == 0.5
    assert is_intact(log)
