"""Digests of bodies: the same in every process, and useless without the tenant's key."""

from dataclasses import replace

from filmgate.jobs import Idempotency, TenantId
from filmgate.scheduling import open_queue
from filmgate.scheduling.acceptance import BodyDigests
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.store.keys.files import FileKeyring
from tests.tickets import make_ticket

ACME = TenantId("acme")
# SHA-256 of {"prompt": "a red ball"}: what someone who guesses the prompt can compute.
GUESSED = "9b0d3c7a7a4d8ae5dd4bd7e9b2a1c54f5c6e0c5a3e1b6a8c2f4d6e8a0b2c4d6e"


def stored_digests(bench):
    with bench.database.read() as connection:
        return list(connection.exec_driver_sql("SELECT body_digest FROM jobs").scalars())


def test_a_stored_digest_does_not_confirm_a_guessed_body(bench):
    for tenant in ("acme", "globex"):
        bench.queue.enqueue(make_ticket(tenant, idempotency=Idempotency(GUESSED)))
    digests = stored_digests(bench)
    assert GUESSED not in digests
    assert len(set(digests)) == 2, "two tenants with one body have different digests"


def test_every_process_recognises_a_repeated_body(bench, tmp_path):
    first = bench.queue.enqueue(make_ticket(idempotency=Idempotency(GUESSED)))
    keys = DataKeys(FileKeyring(tmp_path / "keys"))
    other = open_queue(bench.database, keys, bench.settings)
    retry = Idempotency(GUESSED, is_retry=True)
    assert other.find_duplicate(ACME, retry).id == first.id
    assert other.enqueue(make_ticket(idempotency=retry)).id == first.id


def test_a_tenant_whose_key_was_replaced_can_create_again(bench, tmp_path):
    keyed = Idempotency(GUESSED, key="once")
    bench.queue.enqueue(make_ticket(idempotency=keyed))
    keyring = FileKeyring(tmp_path / "keys")
    keyring.forget(ACME)
    other = open_queue(bench.database, DataKeys(keyring), bench.settings)
    again = replace(keyed, key="twice")
    job = other.enqueue(make_ticket(idempotency=again))
    assert other.enqueue(make_ticket(idempotency=again)).id == job.id


def test_a_process_uses_the_key_that_another_one_has_replaced(bench, tmp_path):
    """Otherwise the same request would be a conflict in one of the two."""
    now, keyring = 0.0, FileKeyring(tmp_path / "keys")
    first = BodyDigests(bench.database, Sealer(DataKeys(keyring)), clock=lambda: now)
    before = first.digest_prompt(ACME, "a red ball")
    keyring.forget(ACME)
    other = BodyDigests(bench.database, Sealer(DataKeys(keyring)))
    assert other.digest_prompt(ACME, "a red ball") != before
    now += 5.0
    assert first.digest_prompt(ACME, "a red ball") == other.digest_prompt(ACME, "a red ball")
