"""Which callers a server process refuses, and how cheaply."""

import pytest
from prometheus_client import CollectorRegistry

from filmgate.api.edge import Edge
from filmgate.errors import RateLimited
from filmgate.jobs import TenantId
from filmgate.settings import LimitSettings


def edge_with(**limits):
    return Edge(LimitSettings(**limits), CollectorRegistry())


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
    edge.check_login("192.0.2.1", "fg_key")
    edge.record_login("192.0.2.1", "fg_key", TenantId("busy"))
    edge.take_tenant(TenantId("busy"))
    with pytest.raises(RateLimited):
        edge.check_login("192.0.2.1", "fg_key")
    edge.check_login("192.0.2.1", "fg_other")
