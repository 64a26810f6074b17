"""Fetching from a real server, with a resolver of the test."""

import ipaddress
import socket
import threading
from contextlib import closing
from typing import ClassVar

import pytest

from filmgate.admission.uploads import urls
from filmgate.admission.uploads.urls import FetchLimits, fetch, is_public
from filmgate.errors import UploadTooLarge, UrlNotAllowed
from tests.http_server import Handler, HttpServer

LOCAL = ipaddress.ip_address("127.0.0.1")


class FetchHandler(Handler):
    protocol_version = "HTTP/1.0"
    hosts: ClassVar = []
    is_over: ClassVar = threading.Event()  # ends the slow response

    def do_GET(self):
        self.hosts.append(self.headers["Host"])
        getattr(self, f"send_{self.path.strip('/')}")()

    def send_image(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"image")

    def send_large(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 5000)

    def send_slow(self):
        self.send_response(200)
        self.end_headers()
        for _ in range(600):
            self.wfile.write(b"x")
            self.wfile.flush()
            if self.is_over.wait(0.1):
                break

    def send_informational(self):
        self._drip(b"HTTP/1.1 100 Continue\r\n\r\n")

    def send_headers(self):
        self._drip(b"HTTP/1.1 200 OK\r\nX: ", b"y")

    def send_chunk_line(self):
        self._drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0")

    def send_trailers(self):
        self._drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n")

    def _drip(self, head, rest=None):
        self.wfile.write(head)
        try:
            while not self.is_over.wait(0.05):
                self.wfile.write(rest or head)
        except OSError:
            self.close_connection = True

    def send_missing(self):
        self.send_error(404)

    def send_private(self):
        self._redirect("http://metadata.internal/latest")

    def send_moved(self):
        self._redirect("/image")

    def send_broken(self):
        self._redirect("http://[")

    def send_loop(self):
        self._redirect("/loop")

    def _redirect(self, location):
        self.send_response(302)
        self.send_header("Location", location)
        self.end_headers()


@pytest.fixture(scope="module")
def port():
    with closing(HttpServer(FetchHandler)) as server:
        yield server.server_port


@pytest.fixture
def get(port, monkeypatch):
    """`public.example` is our server and counts as public; every other name resolves to a private address."""
    monkeypatch.setitem(urls._PORTS, "http", port)

    def resolve(host, _port):
        return [LOCAL if host == "public.example" else ipaddress.ip_address("169.254.169.254")]

    def get(path, **limits):
        bounds = FetchLimits(**{"seconds": 60, "max_bytes": 1000} | limits)
        allowed = lambda address: address == LOCAL or is_public(address)  # noqa: E731
        return fetch(f"http://public.example/{path}", bounds, resolve, allowed)

    return get


def test_the_connection_goes_to_the_checked_address_with_the_host_name(get):
    assert get("image").data == b"image"
    assert FetchHandler.hosts[-1] == "public.example", "without the default port of the scheme"


def test_every_redirect_is_followed_and_checked(get):
    assert get("moved").data == b"image"
    with pytest.raises(UrlNotAllowed, match="public"):
        get("private")
    with pytest.raises(UrlNotAllowed, match="redirects"):
        get("loop")
    with pytest.raises(UrlNotAllowed, match="malformed"):
        get("broken")


def test_size_and_duration_are_limited(get):
    with pytest.raises(UploadTooLarge):
        get("large")
    with pytest.raises(UrlNotAllowed):
        get("slow", seconds=0.5)
    FetchHandler.is_over.set()


@pytest.mark.parametrize("part", ["informational", "headers", "chunk_line", "trailers"])
def test_the_deadline_covers_every_part_of_the_response(get, part):
    """The server sends until the test ends it."""
    FetchHandler.is_over.clear()
    with pytest.raises(UrlNotAllowed, match="timed out"):
        get(part, seconds=0.3)
    assert not FetchHandler.is_over.is_set()
    FetchHandler.is_over.set()


def test_the_deadline_covers_the_resolver_and_the_tls_handshake(port, monkeypatch):
    release = threading.Event()
    limits = FetchLimits(seconds=0.2, max_bytes=1000)
    with pytest.raises(UrlNotAllowed, match="timed out"):
        fetch("http://slow.example/", limits, lambda _host, _port: release.wait(30) and [])
    release.set()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setitem(urls._PORTS, "https", silent.getsockname()[1])
        with pytest.raises(UrlNotAllowed, match="timed out"):
            fetch("https://silent.example/", limits, lambda _host, _port: [LOCAL], lambda _address: True)


def test_a_host_that_takes_too_long_to_connect_has_timed_out(get, monkeypatch):
    def connect(*_arguments, **_options):
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(UrlNotAllowed, match="timed out"):
        get("image")


def test_the_status_of_a_failed_request_is_reported(get):
    with pytest.raises(UrlNotAllowed, match="404"):
        get("missing")
