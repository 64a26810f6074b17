"""Which addresses are public, and which URLs are rejected without a connection."""

import ipaddress

import pytest

from filmgate.admission.sources import parse_hosts
from filmgate.admission.uploads.urls import FetchLimits, fetch, is_public
from filmgate.errors import SettingsError, UrlNotAllowed

LIMITS = FetchLimits(seconds=2, max_bytes=1000)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1",
        "::1", "::", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::", "2002:a00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe",
        "192.0.0.9", "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.175.48.1",
        "fec0::1", "5f00::1", "3fff::1", "100::1", "100:0:0:1::1", "64:ff9b:1::1", "2001:20::1",
        "2001:10::1", "2001:4:112::1", "2620:4f:8000::1", "2002:101:101::", "4000::1",
    ],
)  # fmt: skip
def test_a_private_address_is_not_public_in_any_notation(address):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_a_public_address_is_public(address):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "gopher://x/", "ftp://example.com/a", "http://", "//example.com", "nonsense",
        "http://user:pw@example.com/", "http://example.com:22/", "http://[::1", "http://example.com/a b",
        "http://example.com/\r\nX: y", "data:image/png;base64,AAAA",
    ],
)  # fmt: skip
def test_an_unsupported_url_is_rejected_before_its_host_is_resolved(url):
    def resolve(_host, _port):
        raise AssertionError("resolved")

    with pytest.raises(UrlNotAllowed):
        fetch(url, LIMITS, resolve)


@pytest.mark.parametrize("answers", [["10.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["1.1.1.1", "::1"], []])
def test_one_private_address_among_public_ones_is_rejected(answers):
    def resolve(_host, _port):
        return [ipaddress.ip_address(answer) for answer in answers]

    with pytest.raises(UrlNotAllowed, match="public"):
        fetch("http://example.com/a.png", LIMITS, resolve)


@pytest.mark.parametrize(
    "text", ["https://cdn.example.com", "a.example,cdn.example.com:443", "*.example.com"]
)
def test_an_entry_of_fetch_hosts_that_no_host_matches_is_a_settings_error(text):
    """Otherwise every URL would be rejected, and the client told that its host is not allowed."""
    with pytest.raises(SettingsError, match="is not the name of a host"):
        parse_hosts(text)
    assert parse_hosts(" CDN.example.com, ,a.example") == {"cdn.example.com", "a.example"}


def test_a_host_outside_fetch_hosts_is_rejected():
    limits = FetchLimits(seconds=2, max_bytes=1000, hosts=frozenset({"images.example.com"}))
    with pytest.raises(UrlNotAllowed, match="fetch_hosts"):
        fetch("http://other.example.com/a.png", limits)


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
def test_loopback_is_rejected_in_every_notation(host):
    with pytest.raises(UrlNotAllowed):
        fetch(f"http://{host}/", LIMITS)
