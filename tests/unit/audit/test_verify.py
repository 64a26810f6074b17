"""Verification of chains: one changed byte names one record."""

import base64
import json
from dataclasses import asdict, replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from filmgate.audit.records import ORIGIN, AuditRecord, Head, chain_hash
from filmgate.audit.signing import LocalSigner
from filmgate.audit.verify import verify
from filmgate.errors import UsageError
from filmgate.jobs import TenantId

SIGNER = LocalSigner(b"k" * 32)


def make_chain(count, tenant="acme"):
    records, previous = [], ORIGIN
    for number in range(1, count + 1):
        fields = (tenant, number, 1e9 + number, "read", f"video_{number:032x}", None, '{"by":"key"}')
        previous = chain_hash(previous, fields)
        records.append(AuditRecord(*fields, hash=previous))
    return records


def make_head(records, signer=SIGNER, tenant="acme", **fields):
    last = records[-1]
    head = Head(TenantId(tenant), last.number, last.hash, signed_number=last.number, signed_hash=last.hash)
    head = replace(head, signed_at=2e9, **fields)
    return replace(head, signature=signer.sign(head.payload))


def names(records, head, **options):
    result = verify(records, [head], public_key=SIGNER.public_key, **options)
    return [fault.number for fault in result.faults]


CHAIN = make_chain(20)
HEAD = make_head(CHAIN)


def test_an_intact_chain_verifies():
    result = verify(CHAIN, [HEAD], public_key=SIGNER.public_key)
    assert result.is_intact
    assert (result.records, result.tenants, result.unsigned) == (20, 1, 0)


@given(
    st.integers(0, 19), st.sampled_from(("at", "action", "job_id", "details", "hash")), st.integers(0, 200)
)
def test_one_changed_character_names_its_record(place, column, where):
    record = CHAIN[place]
    value = getattr(record, column)
    if column == "at":
        changed = value + 1
    else:
        where %= len(value)
        changed = value[:where] + chr(ord(value[where]) ^ 1) + value[where + 1 :]
    records = [*CHAIN]
    records[place] = replace(record, **{column: changed})
    assert set(names(records, HEAD)) == {place + 1}


@pytest.mark.parametrize("gone", [1, 7, 20])
def test_a_deleted_record_is_named(gone):
    assert gone in names([record for record in CHAIN if record.number != gone], HEAD)


def test_a_chain_that_was_written_again_does_not_match_the_signed_head():
    changed = replace(CHAIN[4], details='{"by":"nobody"}')
    rewritten, previous = CHAIN[:4], CHAIN[3].hash
    for record in [changed, *CHAIN[5:]]:
        previous = record.chain(previous)
        rewritten.append(replace(record, hash=previous))
    head = replace(HEAD, hash=previous)
    assert names(rewritten, head) == [20]
    forged = replace(head, signed_hash=previous)
    assert names(rewritten, forged) == [20]


def test_an_anchor_proves_that_the_end_was_cut_off():
    short = CHAIN[:15]
    faults = verify(short, [make_head(short)], public_key=SIGNER.public_key, anchors=[HEAD]).faults
    assert [fault.number for fault in faults] == [16]
    assert "cut off" in faults[0].problem


def test_a_signature_by_another_key_is_a_fault():
    other = LocalSigner(b"x" * 32)
    assert names(CHAIN, make_head(CHAIN, other)) == [20]


def test_a_flipped_byte_in_the_signature_is_a_fault():
    raw = bytearray(base64.b64decode(HEAD.signature))
    raw[5] ^= 1
    assert names(CHAIN, replace(HEAD, signature=base64.b64encode(raw).decode())) == [20]


def test_records_after_retention_verify_from_their_base():
    base = {"base_number": 5, "base_hash": CHAIN[4].hash}
    assert names(CHAIN[5:], make_head(CHAIN, **base)) == []
    assert names(CHAIN[6:], make_head(CHAIN, **base)) == [6]


def test_a_deletion_before_the_end_of_retention_is_a_fault():
    """Whoever claims that retention deleted records is contradicted by a recent anchor."""
    head = make_head(CHAIN, base_number=20, base_hash=CHAIN[-1].hash)
    anchor = replace(HEAD, signed_at=2e9)
    assert verify([], [head], anchors=[anchor], retained_since=1.9e9).faults[0].number == 20
    assert verify([], [head], anchors=[anchor], retained_since=2.1e9).is_intact


def test_a_head_without_a_signature_proves_nothing():
    """Whoever replaces a chain and its head cannot sign it."""
    forged = replace(HEAD, signature="")
    result = verify(CHAIN, [forged], public_key=SIGNER.public_key)
    assert ([fault.number for fault in result.faults], result.unsigned) == ([20], 20)
    emptied = Head(HEAD.tenant_id, 20, HEAD.hash, base_number=20, base_hash=HEAD.hash)
    assert not verify([], [emptied], public_key=SIGNER.public_key).is_intact
    new = Head(HEAD.tenant_id, 20, HEAD.hash)
    assert names(CHAIN, new) == []


def strict(records, head):
    result = verify(records, [head], public_key=SIGNER.public_key, must_be_signed=True)
    return [(fault.number, fault.problem) for fault in result.faults]


@pytest.mark.parametrize("signed_number", [0, 20])
def test_an_export_whose_signature_was_removed_is_a_fault(signed_number):
    stripped = replace(HEAD, signed_number=signed_number, signature="")
    ((number, problem),) = strict(CHAIN, stripped)
    assert number == 0
    assert problem.startswith("no signature covers these records")
    assert "compare them with the database of the installation" in problem


def test_an_export_may_have_records_after_its_signed_head():
    signed = make_head(CHAIN[:15])
    later = replace(signed, number=20, hash=CHAIN[-1].hash)
    assert strict(CHAIN, later) == []
    result = verify(CHAIN, [later], public_key=SIGNER.public_key, must_be_signed=True)
    assert (result.has_checked_signatures, result.unsigned) == (True, 5)


def test_without_a_public_key_no_record_counts_as_signed():
    """A signature that nobody checked may be anything."""
    result = verify(CHAIN, [replace(HEAD, signature="garbage")])
    assert (result.is_intact, result.has_checked_signatures, result.unsigned) == (True, False, 20)
    base = {"base_number": 5, "base_hash": CHAIN[4].hash}
    assert verify(CHAIN[5:], [make_head(CHAIN, **base)]).unsigned == 15


def test_every_anchor_of_a_record_counts():
    other = replace(HEAD, signed_hash="0" * 64, signature="")
    assert names(CHAIN, HEAD, anchors=[other, HEAD]) == [20]


def test_the_base_must_be_the_record_that_was_anchored():
    head = make_head(CHAIN, base_number=5, base_hash=CHAIN[4].hash)
    anchor = make_head(CHAIN[:5])
    assert names(CHAIN[5:], head, anchors=[anchor]) == []
    forged = replace(anchor, signed_hash="0" * 64, signature="")
    assert names(CHAIN[5:], head, anchors=[forged]) == [5]


def test_a_missing_head_is_a_fault():
    result = verify(CHAIN, [])
    assert result.faults[0].number == 0


def test_the_payload_of_a_signature_covers_every_claim():
    for name in ("signed_number", "signed_hash", "base_number", "base_hash", "signed_at", "tenant_id"):
        value = getattr(HEAD, name)
        other = value + "0" if isinstance(value, str) else value + 1
        assert replace(HEAD, **{name: other}).payload != HEAD.payload
    assert json.loads(json.dumps(asdict(HEAD)))["signature"] == HEAD.signature


def test_a_public_key_that_cannot_be_read_is_an_error_with_a_remedy():
    with pytest.raises(UsageError, match="is not PEM; give another one with --public-key"):
        verify(CHAIN, [HEAD], public_key="not a key")


def to_pem(key):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()


SM2 = """-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoEcz1UBgi0DQgAEVl0Gu5/O6JZbD8GtF2j6xe4LYslI
Fkneu2Qfh9dbFEwFLBnG+fLjeKPuSxLFEM4iIdP2mV3eC5PcTEPKMpdlSA==
-----END PUBLIC KEY-----
"""


@pytest.mark.parametrize("key", [to_pem(ec.generate_private_key(ec.SECP384R1())), SM2], ids=["P-384", "SM2"])
def test_a_key_of_another_kind_is_not_a_wrong_signature(key):
    with pytest.raises(UsageError, match="is neither Ed25519 nor P-256"):
        verify(CHAIN, [HEAD], public_key=key)
