"""A link gives access to one object for a limited time."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from filmgate.errors import LinkInvalid
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.store.local.links import ObjectLinks, decode_token, encode_token
from tests.named_keys import NamedKeys

NAME = ObjectName(TenantId("acme"), new_job_id(), "clip-1.mp4")


def links_of(keyring, clock=lambda: 1000.0):
    """The links of a new process."""
    return ObjectLinks(Sealer(DataKeys(keyring)), clock)


def test_a_link_names_its_object_until_it_expires():
    now = 1000.0
    token = links_of(NamedKeys()).issue(NAME, 900)
    replica = links_of(NamedKeys(), clock=lambda: now)
    assert replica.verify(token) == NAME
    now = 1899.0
    assert replica.verify(token) == NAME
    now = 1900.0
    with pytest.raises(LinkInvalid, match="expired"):
        replica.verify(token)


@given(st.integers(0, 10_000), st.integers(0, 63))
def test_a_link_with_any_character_changed_is_rejected(place, shift):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    links = links_of(NamedKeys())
    token = links.issue(NAME, 900)
    place %= len(token)
    changed = token[:place] + alphabet[shift] + token[place + 1 :]
    assume(changed != token)
    with pytest.raises(LinkInvalid):
        links.verify(changed)


@given(st.text(max_size=100))
def test_random_text_is_rejected(token):
    with pytest.raises(LinkInvalid):
        links_of(NamedKeys()).verify(token)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"1900 ", b"9000 "),
        (b"clip-1", b"clip-2"),
        (b" acme/", b" rival/"),
        (b"\n", b"0\n"),
        (b"1900", b"+1900"),
    ],
)
def test_the_holder_of_a_link_cannot_change_what_it_names(old, new):
    links = links_of(NamedKeys())
    token = encode_token(decode_token(links.issue(NAME, 900)).replace(old, new, 1))
    with pytest.raises(LinkInvalid, match="not valid"):
        links.verify(token)
