"""The HTTP provider against an API with scripted responses."""

import json
import threading
from dataclasses import replace

import certifi
import pytest

from filmgate.errors import (
    ProviderCannot,
    ProviderError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnusable,
    SettingsError,
)
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec
from filmgate.providers import endpoint, open_provider
from filmgate.providers.base import InvocationState, ProviderTask
from filmgate.providers.http import parse_seconds
from filmgate.settings import ProviderSettings
from tests.http_server import Handler, HttpServer

SPEC = VideoSpec(
    model="sora-2", prompt="a red ball", width=1280, height=720, seconds=5.0, fps=24, seed=7, steps=40
)
ANYTHING = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
VIDEO = InvocationId("video_1")
MODELS = {"data": [{"id": "sora-2", "object": "model"}]}


class ScriptedApi:
    """A server that keeps every request and answers by method and path."""

    def __init__(self):
        self.responses, self.requests = {}, []
        api = self

        class ApiHandler(Handler):
            protocol_version = "HTTP/1.0"  # a response without a length ends with its connection

            def respond(self):
                body = self.read_body()
                api.requests.append((self.command, self.path, dict(self.headers), body))
                status, headers, data = api.responses[self.command, self.path]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = respond

        server = HttpServer(ApiHandler)
        self.url, self.close = server.url, server.close

    def respond(self, method, path, content, status=200, **headers):
        """Set the response to a method and path: bytes, or fields that are sent as JSON."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.responses[method, path] = (status, {k.replace("_", "-"): v for k, v in headers.items()}, data)


@pytest.fixture
def api():
    api = ScriptedApi()
    api.respond("GET", "/v1/models", MODELS)
    yield api
    api.close()


def provider_of(api, **fields):
    given = {"kind": "http", "url": f"{api.url}/v1", "api_key": "sk-secret"}
    return open_provider(ProviderSettings(**given | fields))


def task_of(provider, spec=SPEC, source=None):
    read = (lambda: iter([source])) if source else None
    return ProviderTask("token-1", provider.adapt(spec, ANYTHING), read)


def test_an_api_that_lists_no_limits_gets_only_fields_of_the_openai_api(api):
    api.respond("POST", "/v1/videos", {"id": "video_1", "status": "queued"})
    provider = provider_of(api, sizes="1280x720,720x1280", seconds="4,8,12")
    assert provider.start(task_of(provider)) == "video_1"
    _, _, headers, body = api.requests[-1]
    assert json.loads(body) == {"prompt": "a red ball", "model": "sora-2", "size": "1280x720", "seconds": "4"}
    assert headers["Idempotency-Key"] == "token-1"
    assert headers["Authorization"] == "Bearer sk-secret"


def test_a_first_frame_is_sent_as_a_form_with_the_same_bytes_each_time(api):
    api.respond("POST", "/v1/videos", {"id": "video_1"})
    provider = provider_of(api)
    task = task_of(provider, source=b"\x89PNG pixels")
    provider.start(task)
    provider.start(task)
    (_, _, headers, first), (_, _, _, second) = api.requests[-2:]
    assert headers["Content-Type"] == "multipart/form-data; boundary=token-1"
    assert first == second
    assert b'name="input_reference"; filename="source.png"' in first
    assert b"\x89PNG pixels" in first


@pytest.mark.parametrize(
    ("response", "state", "fraction"),
    [
        ({"status": "queued", "progress": 0}, InvocationState.PENDING, 0.0),
        ({"status": "in_progress", "progress": 40}, InvocationState.PENDING, 0.4),
        ({"status": "something new"}, InvocationState.PENDING, None),
        ({"status": "completed", "progress": 100}, InvocationState.COMPLETED, 1.0),
        ({"status": "failed", "error": {"message": "quotes a prompt"}}, InvocationState.FAILED, None),
    ],
)
def test_status_progress_and_polling_interval_are_parsed(api, response, state, fraction):
    api.respond("GET", "/v1/videos/video_1", response, openai_poll_after_ms="1500")
    invocation = provider_of(api).poll(VIDEO)
    assert (invocation.state, invocation.fraction) == (state, fraction)
    assert invocation.poll_after_seconds == 1.5
    assert "quotes" not in invocation.message


def test_an_absurd_polling_interval_does_not_fail_the_job(api):
    """Python converts no more than 4,300 digits to an integer. The worker waits a minute at most."""
    api.respond("GET", "/v1/videos/video_1", {"status": "queued"}, openai_poll_after_ms="9" * 5000)
    assert provider_of(api).poll(VIDEO).poll_after_seconds > 60


def test_a_job_that_the_api_does_not_know_has_failed(api):
    api.respond("GET", "/v1/videos/video_1", {"error": {}}, status=404)
    assert provider_of(api).poll(VIDEO).state is InvocationState.FAILED


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ProviderRefused),
        (422, ProviderRefused),
        (401, ProviderUnusable),
        (403, ProviderUnusable),
        (429, ProviderThrottled),
        (409, ProviderError),
        (500, ProviderError),
        (503, ProviderError),
    ],
)
def test_the_type_of_an_error_shows_whether_a_retry_can_help(api, status, error):
    content = {"error": {"code": "some_code", "message": "a red ball is not allowed"}}
    api.respond("POST", "/v1/videos", content, status=status, Retry_After="7")
    provider = provider_of(api)
    with pytest.raises(ProviderError) as caught:
        provider.start(task_of(provider))
    assert type(caught.value) is error
    assert f"HTTP {status} some_code" in str(caught.value)
    assert "red ball" not in str(caught.value)
    if error is ProviderThrottled:
        assert caught.value.retry_after_seconds == 7


def test_a_redirect_to_a_signed_link_is_followed_without_the_key(api):
    api.respond("GET", "/v1/videos/video_1/content", b"", status=302, Location="/objects/signed")
    api.respond("GET", "/objects/signed", b"clip", Content_Type="video/mp4", Content_Length="4")
    assert b"".join(provider_of(api).fetch(VIDEO)) == b"clip"
    assert "Authorization" not in api.requests[-1][2]


def test_tls_uses_the_certificates_of_the_host(monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    bundles = []
    monkeypatch.setattr(certifi, "where", lambda: bundles.append("this bundle lacks private authorities"))
    open_provider(ProviderSettings(kind="http", url="https://127.0.0.1:9/v1"))
    assert bundles == []


def test_endless_redirects_are_an_error(api):
    api.respond("GET", "/v1/videos/video_1", b"", status=302, Location="/v1/videos/video_1")
    with pytest.raises(ProviderError, match="TooManyRedirects"):
        provider_of(api).poll(VIDEO)
    assert len(api.requests) == 6


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Content_Type": "text/html", "Content_Length": "4"}, "text/html"),
        ({"Content_Type": "video/mp4", "Content_Length": "9"}, "4 of 9 bytes|unreachable"),
    ],
)
def test_a_response_that_is_not_a_complete_clip_is_an_error(api, headers, message):
    api.respond("GET", "/v1/videos/video_1/content", b"clip", **headers)
    with pytest.raises(ProviderError, match=message):
        list(provider_of(api).fetch(VIDEO))


def test_an_empty_clip_is_an_error(api):
    api.respond("GET", "/v1/videos/video_1/content", b"", Content_Type="video/mp4", Content_Length="0")
    with pytest.raises(ProviderError, match="0 of 0 bytes"):
        list(provider_of(api).fetch(VIDEO))


@pytest.fixture
def slow_api():
    """Sends the first half of every response, and the rest after `may_end` is set."""
    may_end = threading.Event()

    class SlowHandler(Handler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "video/mp4")
            self.send_header("Content-Length", "10")
            self.end_headers()
            self.wfile.write(b"first")
            may_end.wait(60)
            self.wfile.write(b" last")

    server = HttpServer(SlowHandler)
    server.may_end = may_end
    yield server
    may_end.set()
    server.close()


def test_a_slow_clip_is_passed_on_as_it_arrives(slow_api):
    """So that the worker can stop the download of a cancelled job, and of one that takes too long."""
    chunks = provider_of(slow_api, timeout_seconds=10).fetch(VIDEO)
    assert next(chunks) == b"first"
    slow_api.may_end.set()
    assert b"".join(chunks) == b" last"


def test_an_answer_that_trickles_in_is_given_up(slow_api, monkeypatch):
    monkeypatch.setattr(endpoint, "_MAX_JSON_SECONDS", 0.0)
    with pytest.raises(ProviderError, match="takes more than 0 seconds"):
        provider_of(slow_api, timeout_seconds=10).poll(VIDEO)


def test_a_job_is_deleted_when_the_api_has_no_cancel(api):
    api.respond("POST", "/v1/videos/video_1/cancel", {}, status=404)
    api.respond("DELETE", "/v1/videos/video_1", {})
    provider_of(api).cancel(VIDEO)
    assert [request[0] for request in api.requests] == ["POST", "DELETE"]


def test_an_unreachable_api_is_a_retryable_error():
    provider = open_provider(ProviderSettings(kind="http", url="http://127.0.0.1:9/v1", timeout_seconds=1))
    with pytest.raises(ProviderError, match="unreachable") as caught:
        provider.poll(VIDEO)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("given", "path"), [("../models", "%2E%2E%2Fmodels"), ("..", "%2E%2E"), (".", "%2E")]
)
def test_an_invocation_id_cannot_change_the_path(api, given, path):
    api.respond("GET", f"/v1/videos/{path}", {"status": "queued"})
    assert provider_of(api).poll(InvocationId(given)).state is InvocationState.PENDING


LIMITS = {
    "size": {"default": "256x256", "multiple": 32, "min_side": 64, "max_side": 512, "max_pixels": 262144},
    "seconds": {"default": 2, "min": 1, "max": 8},
    "sources": ["image"],
}


@pytest.mark.parametrize(
    ("levels", "quality"), [(None, ("full",)), ([], ("full",)), ([{"name": "draft"}], ("draft",))]
)
def test_a_model_without_quality_levels_renders_in_full(api, levels, quality):
    listed = {"id": "sora-2", "limits": LIMITS, "quality_levels": levels}
    api.respond("GET", "/v1/models", {"data": [listed]})
    (model,) = provider_of(api).models()
    assert (model.quality, model.takes_image) == (quality, True)


@pytest.mark.parametrize("change", [{"limits": [1]}, {"limits": {}}, {"quality_levels": [None]}])
def test_limits_that_cannot_be_parsed_are_an_error_of_the_provider(api, change):
    listed = {"id": "sora-2", "limits": LIMITS, "quality_levels": []} | change
    api.respond("GET", "/v1/models", {"data": [listed]})
    with pytest.raises(ProviderError, match="cannot be parsed"):
        provider_of(api).models()


def test_a_model_that_the_api_does_not_have_is_an_error(api):
    with pytest.raises(ProviderUnusable, match="no model 'veo'"):
        provider_of(api, model="veo").models()


def test_without_a_configured_model_only_the_model_of_the_same_name_is_used(api):
    with pytest.raises(ProviderCannot, match="has no models"):
        provider_of(api).adapt(replace(SPEC, model="wan"), ANYTHING)


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"url": "ftp://host/v1"}, "provider.url"),
        ({"url": "host"}, "provider.url"),
        ({"url": "http://host/v1", "key_file": "/nowhere/key"}, "provider.key_file"),
        ({"url": "http://host/v1", "sizes": "big"}, "provider.sizes"),
        ({"url": "http://host/v1", "seconds": "4,soon"}, "provider.seconds"),
    ],
)
def test_an_invalid_setting_is_named(fields, option):
    with pytest.raises(SettingsError) as caught:
        open_provider(ProviderSettings(kind="http", **fields))
    assert caught.value.option == option


def test_the_key_is_read_from_its_file_and_not_shown(tmp_path, api):
    (tmp_path / "key").write_text("sk-file\n")
    provider = provider_of(api, key_file=str(tmp_path / "key"))
    provider.models()
    assert api.requests[-1][2]["Authorization"] == "Bearer sk-file"
    assert "sk-file" not in repr(provider._endpoint)


def test_an_api_without_a_key_is_called_without_authorization(api):
    provider_of(api, api_key="").models()
    assert "Authorization" not in api.requests[-1][2]


def test_lengths_in_settings_are_parsed():
    assert (parse_seconds("4,8.5"), parse_seconds("")) == ((4.0, 8.5), ())
