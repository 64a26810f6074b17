"""The console and the API reference over HTTP."""

import httpx
import pytest

from filmgate.api.console import HEADERS


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_page_needs_no_key_and_has_its_headers(service, path):
    page = httpx.get(service.url + path)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert {name: page.headers[name] for name in HEADERS} == HEADERS
    assert "set-cookie" not in page.headers
    assert "https://" not in page.text


@pytest.mark.parametrize("path", ["/", "/docs", "/console/console.js", "/healthz", "/readyz"])
def test_a_head_request_has_the_headers_of_the_page_without_its_content(service, path):
    got, asked = httpx.get(service.url + path), httpx.head(service.url + path)
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-length"] == got.headers["content-length"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/", "GET, HEAD"),
        ("/v1/videos", "GET, POST"),
        ("/v1/videos/video_x", "DELETE, GET"),
        ("/v1/videos/video_x/content", "GET, HEAD"),
        ("/v1/tenants/acme", "DELETE, GET, PATCH"),
        ("/openapi.json", "HEAD, GET"),
    ],
)
def test_a_refused_method_names_all_methods_of_the_url(service, path, methods):
    refused = httpx.request("PUT", service.url + path)
    assert refused.status_code == 405
    assert sorted(refused.headers["allow"].split(", ")) == sorted(methods.split(", "))


def test_redoc_leads_to_the_reference(service):
    assert httpx.get(f"{service.url}/redoc", follow_redirects=True).url.path == "/docs"


def test_a_file_is_compressed_for_clients_that_accept_it_and_revalidated(service):
    url = f"{service.url}/console/console.js"
    plain = httpx.get(url, headers={"Accept-Encoding": "identity"})
    packed = httpx.get(url, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content
    again = httpx.get(url, headers={"If-None-Match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["missing.js", "..%2fconsole.py", "%2fetc%2fpasswd", "console.py"])
def test_no_other_file_is_served(service, name):
    refused = httpx.get(f"{service.url}/console/{name}")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "unknown_url"
