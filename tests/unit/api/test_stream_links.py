"""A pass opens one job's stream for a while, and nothing else ever."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filmgate.api.stream_links import StreamLinks
from filmgate.errors import KeyRefused, LinkInvalid
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.keys.base import DataKey
from filmgate.store.keys.cache import DataKeys

ACME, RIVAL = TenantId("acme"), TenantId("rival")
JOB = new_job_id()


class Ring:
    """A keyring of names: a data key opens for the tenant that it names."""

    def new_data_key(self, tenant_id):
        return DataKey(tenant_id.encode().ljust(32, b"."), b"wrapped for " + tenant_id.encode())

    def open_data_key(self, tenant_id, wrapped):
        if wrapped != b"wrapped for " + tenant_id.encode():
            raise KeyRefused("not this tenant's")
        return self.new_data_key(tenant_id).plain


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def office(clock):
    return StreamLinks(DataKeys(Ring()), 900, clock=lambda: clock[0])


def open_with(office, token, job_id=JOB):
    claim = office.read(token)
    office.check(claim, job_id)
    return claim.tenant_id


def test_a_pass_opens_its_job_until_it_expires(office, clock):
    issued = office.issue(ACME, JOB)
    assert issued.expires_at == 1900
    assert open_with(office, issued.token) == ACME
    clock[0] = 1899.9
    assert open_with(office, issued.token) == ACME
    clock[0] = 1900.0
    with pytest.raises(LinkInvalid, match="expired"):
        open_with(office, issued.token)


def test_another_office_with_the_same_keyring_takes_it(office, clock):
    token = office.issue(ACME, JOB).token
    assert open_with(StreamLinks(DataKeys(Ring()), 1, clock=lambda: clock[0]), token) == ACME


def test_it_opens_no_other_job(office):
    with pytest.raises(LinkInvalid):
        open_with(office, office.issue(ACME, JOB).token, new_job_id())


def test_a_tenant_cannot_pass_its_own_off_as_anothers(office):
    from filmgate.store.local.links import decode_token, encode_token

    mine = decode_token(office.issue(RIVAL, JOB).token)
    with pytest.raises(LinkInvalid):
        open_with(office, encode_token(mine.replace(b"rival ", b"acme ", 1)))


@given(st.integers(0, 10_000), st.integers(0, 63))
def test_a_pass_with_any_character_changed_is_refused(place, shift):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    office = StreamLinks(DataKeys(Ring()), 900)
    token = office.issue(ACME, JOB).token
    place %= len(token)
    changed = token[:place] + alphabet[shift] + token[place + 1 :]
    assume(changed != token)
    with pytest.raises(LinkInvalid):
        open_with(office, changed)


@given(st.text(max_size=100))
def test_nonsense_is_refused(token):
    with pytest.raises(LinkInvalid):
        open_with(StreamLinks(DataKeys(Ring()), 900), token)
