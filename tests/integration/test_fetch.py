"""Fetching from a real server, with a resolver that says where names are."""

import ipaddress
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from filmgate.admission.uploads import fetch as fetching
from filmgate.admission.uploads.fetch import FetchLimits, fetch, is_public
from filmgate.errors import AddressRefused, UploadTooLarge

LOCAL = ipaddress.ip_address("127.0.0.1")


class Handler(BaseHTTPRequestHandler):
    hosts: ClassVar = []
    is_over: ClassVar = threading.Event()  # the slow response may end

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

    def send_missing(self):
        self.send_error(404)

    def send_inward(self):
        self._redirect("http://metadata.internal/latest")

    def send_onward(self):
        self._redirect("/image")

    def send_loop(self):
        self._redirect("/loop")

    def _redirect(self, location):
        self.send_response(302)
        self.send_header("Location", location)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def get(port, monkeypatch):
    """`public.example` is our server and counts as public; every other name resolves to a private address."""
    monkeypatch.setitem(fetching._PORTS, "http", port)

    def resolve(host, _port):
        return [LOCAL if host == "public.example" else ipaddress.ip_address("169.254.169.254")]

    def get(path, **limits):
        bounds = FetchLimits(**{"seconds": 2, "max_bytes": 1000} | limits)
        allowed = lambda address: address == LOCAL or is_public(address)  # noqa: E731
        return fetch(f"http://public.example/{path}", bounds, resolve, allowed)

    return get


def test_the_checked_address_is_the_one_connected_to_and_the_host_keeps_its_name(get, port):
    assert get("image").data == b"image"
    assert Handler.hosts[-1].partition(":")[0] == "public.example"


def test_a_redirect_is_followed_and_every_hop_is_checked_again(get):
    assert get("onward").data == b"image"
    with pytest.raises(AddressRefused, match="public"):
        get("inward")
    with pytest.raises(AddressRefused, match="redirects"):
        get("loop")


def test_bytes_and_seconds_are_bounded(get):
    with pytest.raises(UploadTooLarge):
        get("large")
    with pytest.raises(AddressRefused):
        get("slow", seconds=0.5)
    Handler.is_over.set()


def test_an_error_of_the_host_is_told(get):
    with pytest.raises(AddressRefused, match="404"):
        get("missing")
