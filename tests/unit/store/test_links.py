"""A signed link gives access to one object for a limited time."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filmgate.errors import LinkInvalid
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName
from filmgate.store.local.links import LinkSigner

NAME = ObjectName(TenantId("acme"), new_job_id(), "clip-1.mp4")


def test_a_link_names_its_object_until_it_expires():
    now = 1000.0
    signer = LinkSigner(b"secret", clock=lambda: now)
    token = signer.sign(NAME, 900)
    assert signer.verify(token) == NAME
    now = 1899.0
    assert signer.verify(token) == NAME
    now = 1900.0
    with pytest.raises(LinkInvalid, match="expired"):
        signer.verify(token)


@given(st.integers(0, 10_000), st.integers(0, 63))
def test_a_link_with_any_character_changed_is_rejected(place, shift):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    signer = LinkSigner(b"secret")
    token = signer.sign(NAME, 900)
    place %= len(token)
    changed = token[:place] + alphabet[shift] + token[place + 1 :]
    assume(changed != token)
    with pytest.raises(LinkInvalid):
        signer.verify(changed)


@given(st.text(max_size=100))
def test_random_text_is_rejected(token):
    with pytest.raises(LinkInvalid):
        LinkSigner(b"secret").verify(token)


def test_a_link_of_another_server_is_rejected():
    with pytest.raises(LinkInvalid):
        LinkSigner(b"other").verify(LinkSigner(b"secret").sign(NAME, 900))
