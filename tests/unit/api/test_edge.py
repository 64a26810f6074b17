"""Which callers a server process refuses, and how cheaply."""

import asyncio

import pytest

from filmgate.api.edge import Edge
from filmgate.errors import RateLimited
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
