"""A stream link gives access to one job's stream until it expires, and to nothing else."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filmgate.api.stream_links import StreamLinks
from filmgate.errors import LinkInvalid
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.keys.data_keys import DataKeys
from filmgate.store.local.links import decode_token, encode_token
from tests.named_keys import NamedKeys

ACME, RIVAL = TenantId("acme"), TenantId("rival")
JOB = new_job_id()


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def links(clock):
    return StreamLinks(DataKeys(NamedKeys()), 900, clock=lambda: clock[0])


def verify(links, token, job_id=JOB):
    """The tenant of a valid link."""
    claim = links.parse(token)
    links.verify(claim, job_id)
    return claim.tenant_id


def test_a_link_is_valid_until_it_expires(links, clock):
    issued = links.issue(ACME, JOB)
    assert issued.expires_at == 1900
    assert verify(links, issued.token) == ACME
    clock[0] = 1899.9
    assert verify(links, issued.token) == ACME
    clock[0] = 1900.0
    with pytest.raises(LinkInvalid, match="expired"):
        verify(links, issued.token)


def test_a_replica_with_the_same_keyring_accepts_the_link(links, clock):
    token = links.issue(ACME, JOB).token
    replica = StreamLinks(DataKeys(NamedKeys()), 1, clock=lambda: clock[0])
    assert verify(replica, token) == ACME


def test_a_link_is_invalid_for_another_job(links):
    with pytest.raises(LinkInvalid):
        verify(links, links.issue(ACME, JOB).token, new_job_id())


def test_a_tenant_cannot_change_its_link_to_another_tenant(links):
    content = decode_token(links.issue(RIVAL, JOB).token)
    with pytest.raises(LinkInvalid):
        verify(links, encode_token(content.replace(b"rival ", b"acme ", 1)))


@given(st.integers(0, 10_000), st.integers(0, 63))
def test_a_link_with_one_changed_character_is_invalid(position, letter):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    links = StreamLinks(DataKeys(NamedKeys()), 900)
    token = links.issue(ACME, JOB).token
    position %= len(token)
    changed = token[:position] + alphabet[letter] + token[position + 1 :]
    assume(changed != token)
    with pytest.raises(LinkInvalid):
        verify(links, changed)


@given(st.text(max_size=100))
def test_arbitrary_text_is_not_a_link(token):
    with pytest.raises(LinkInvalid):
        verify(StreamLinks(DataKeys(NamedKeys()), 900), token)
