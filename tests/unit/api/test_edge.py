"""Which callers a server process refuses, and how cheaply."""

import asyncio

import pytest

from filmgate.api.edge import Edge, Logins, to_address_key
from filmgate.errors import InvalidKey, RateLimited, SettingsError
from filmgate.jobs import TenantId
from filmgate.settings import LimitSettings
from filmgate.tenants.base import Tenant


def edge_with(**limits):
    return Edge(LimitSettings(**limits))


def test_an_address_that_goes_on_after_many_refusals_floods_the_server():
    edge = edge_with(address_requests_per_second=0.001, address_request_burst=1)
    assert edge.take_address("192.0.2.1") == 0.0
    for _ in range(50):
        assert not edge.is_flooding("192.0.2.1")
        assert edge.take_address("192.0.2.1") > 0
    assert edge.is_flooding("192.0.2.1")
    assert not edge.is_flooding("192.0.2.2")


def test_a_trusted_proxy_never_floods_the_server():
    edge = edge_with(
        address_requests_per_second=0.001, address_request_burst=1, trusted_proxies="192.0.2.1, 192.0.2.9"
    )
    for _ in range(60):
        edge.take_address("192.0.2.1")
    assert not edge.is_flooding("192.0.2.1")


@pytest.mark.parametrize(
    ("proxies", "address"),
    [
        ("10.0.0.0/8, 192.0.2.9", "10.1.2.3"),
        ("192.0.2.9", "::ffff:192.0.2.9"),
        ("2001:db8::7", "2001:db8::9"),  # the same /64
        ("2001:db8::/32", "2001:db8:1:2::3"),
    ],
)
def test_a_proxy_is_an_address_or_a_network(proxies, address):
    edge = edge_with(trusted_proxies=proxies)
    assert edge.is_proxy(to_address_key(address))
    assert not any(edge.is_proxy(to_address_key(other)) for other in ("192.0.2.1", "2001:dead::1", "unknown"))


@pytest.mark.parametrize("proxies", ["*", "proxy.internal", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.1 10.0.0.2"])
def test_what_is_not_an_address_is_refused_at_the_start(proxies):
    with pytest.raises(SettingsError, match="not an address or a network") as caught:
        edge_with(trusted_proxies=proxies)
    assert caught.value.option == "limits.trusted_proxies"


def test_a_revoked_key_is_limited_like_any_invalid_key():
    edge = edge_with(failed_logins_per_minute=1)
    scope, answers = {"client": ("192.0.2.1", 4711)}, [Tenant(TenantId("acme")), InvalidKey("revoked")]

    async def look_up():
        answer = answers.pop(0)
        if isinstance(answer, InvalidKey):
            raise answer
        return answer

    asyncio.run(edge.login(scope, "fg_key", look_up))
    with pytest.raises(InvalidKey):
        asyncio.run(edge.login(scope, "fg_key", look_up))
    with pytest.raises(RateLimited):
        asyncio.run(edge.login(scope, "fg_key", look_up))


def test_credentials_are_remembered_without_their_text():
    logins = Logins(failures_per_minute=1)
    logins.succeed("key:fg_secret", TenantId("acme"))
    assert logins.tenant_of("key:fg_secret") == "acme"
    assert logins.tenant_of("certificate:fg_secret") is None
    assert "fg_secret" not in repr(vars(logins))


def test_a_tenant_over_its_rate_is_refused_before_its_key_is_looked_up():
    edge = edge_with(tenant_requests_per_second=0.001, tenant_request_burst=1)
    scope, looked_up = {"client": ("192.0.2.1", 4711)}, []

    async def login(key, name):
        async def look_up():
            looked_up.append(key)
            return Tenant(TenantId(name))

        await edge.login(scope, key, look_up)

    asyncio.run(login("fg_key", "busy"))
    with pytest.raises(RateLimited):
        asyncio.run(login("fg_key", "busy"))
    asyncio.run(login("fg_other", "idle"))
    assert looked_up == ["fg_key", "fg_other"]
