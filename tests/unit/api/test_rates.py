"""Token buckets per key, and the limit on invalid keys per address."""

import pytest

from filmgate.api.edge import MAX_BUCKETS, Logins, TokenBuckets, to_address_key
from filmgate.jobs import TenantId


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_bucket_allows_a_burst_and_then_the_rate():
    clock = Clock()
    buckets = TokenBuckets(2.0, 3, clock)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b") == 0.0
    clock.now += 0.5
    assert [buckets.take("a"), buckets.take("a")] == [0.0, 0.5]


def test_zero_means_no_limit():
    buckets = TokenBuckets(0.0, 1)
    assert {buckets.take("a") for _ in range(100)} == {0.0}
    assert len(buckets) == 0


def test_memory_does_not_grow_with_the_number_of_addresses():
    buckets = TokenBuckets(1.0, 1)
    for number in range(MAX_BUCKETS + 100):
        buckets.take(str(number))
    assert len(buckets) == MAX_BUCKETS


def test_after_invalid_keys_an_address_waits_but_a_key_that_was_valid_does_not():
    clock = Clock()
    logins = Logins(60, clock)
    logins.succeed("fg_good", TenantId("good"))
    for _ in range(60):
        assert logins.wait_seconds("a", "fg_bad") == 0.0
        logins.fail("a", "fg_bad")
    assert logins.wait_seconds("a", "fg_bad") == pytest.approx(1.0)
    assert logins.wait_seconds("a", None) == pytest.approx(1.0)
    assert logins.wait_seconds("a", "fg_good") == 0.0
    assert logins.wait_seconds("b", "fg_bad") == 0.0


def test_an_ipv6_client_is_its_network():
    assert to_address_key("2001:db8:1:2:3::4") == to_address_key("2001:db8:1:2:ffff::") == "2001:db8:1:2::"
    assert to_address_key("::ffff:192.0.2.1") == to_address_key("192.0.2.1") == "192.0.2.1"
    assert to_address_key("not an address") == "unknown"
