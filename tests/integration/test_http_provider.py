"""The HTTP provider against an endpoint that answers as it is told."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from filmgate.errors import (
    ProviderCannot,
    ProviderError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnusable,
    SettingsError,
)
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec, new_job_id
from filmgate.providers import open_provider
from filmgate.providers.base import InvocationState, ManagedTask
from filmgate.providers.http import parse_seconds, parse_sizes
from filmgate.settings import ProviderSettings

SPEC = VideoSpec(
    model="sora-2", prompt="a red ball", width=1280, height=720, seconds=5.0, fps=24, seed=7, steps=40
)
ANYTHING = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
VIDEO = InvocationId("video_1")
MODELS = {"data": [{"id": "sora-2", "object": "model"}]}


class Told:
    """An endpoint: what it was asked, and what it answers by method and path."""

    def __init__(self):
        self.answers, self.asked = {}, []
        told = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                told.asked.append((self.command, self.path, dict(self.headers), body))
                status, headers, data = told.answers[self.command, self.path]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the base class names them

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def says(self, method, path, told, status=200, **headers):
        data = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.answers[method, path] = (status, {k.replace("_", "-"): v for k, v in headers.items()}, data)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def told():
    told = Told()
    told.says("GET", "/v1/models", MODELS)
    yield told
    told.close()


def provider_of(told, **fields):
    given = {"provider": "http", "url": f"{told.url}/v1", "api_key": "sk-secret", "timeout_seconds": 2}
    return open_provider(ProviderSettings(**given | fields))


def task_of(provider, spec=SPEC, source=None):
    read = (lambda: iter([source])) if source else None
    return ManagedTask(new_job_id(), "token-1", provider.adapt(spec, ANYTHING), read)


def test_an_endpoint_that_says_no_limits_is_asked_in_openais_words_alone(told):
    told.says("POST", "/v1/videos", {"id": "video_1", "status": "queued"})
    provider = provider_of(told, sizes="1280x720,720x1280", seconds="4,8,12")
    assert provider.start(task_of(provider)) == "video_1"
    _, _, headers, body = told.asked[-1]
    assert json.loads(body) == {"prompt": "a red ball", "model": "sora-2", "size": "1280x720", "seconds": "4"}
    assert headers["Idempotency-Key"] == "token-1"
    assert headers["Authorization"] == "Bearer sk-secret"


def test_a_first_frame_goes_as_a_form_whose_bytes_are_the_same_each_time(told):
    told.says("POST", "/v1/videos", {"id": "video_1"})
    provider = provider_of(told)
    task = task_of(provider, source=b"\x89PNG pixels")
    provider.start(task)
    provider.start(task)
    (_, _, headers, first), (_, _, _, second) = told.asked[-2:]
    assert headers["Content-Type"] == "multipart/form-data; boundary=token-1"
    assert first == second
    assert b'name="input_reference"; filename="source.png"' in first
    assert b"\x89PNG pixels" in first


@pytest.mark.parametrize(
    ("answer", "state", "fraction"),
    [
        ({"status": "queued", "progress": 0}, InvocationState.PENDING, 0.0),
        ({"status": "in_progress", "progress": 40}, InvocationState.PENDING, 0.4),
        ({"status": "something new"}, InvocationState.PENDING, None),
        ({"status": "completed", "progress": 100}, InvocationState.COMPLETED, 1.0),
        ({"status": "failed", "error": {"message": "quotes a prompt"}}, InvocationState.FAILED, None),
    ],
)
def test_a_status_is_read_for_what_it_means(told, answer, state, fraction):
    told.says("GET", "/v1/videos/video_1", answer, openai_poll_after_ms="1500")
    invocation = provider_of(told).poll(VIDEO)
    assert (invocation.state, invocation.fraction) == (state, fraction)
    assert invocation.poll_after_seconds == 1.5
    assert "quotes" not in invocation.message


def test_a_job_the_endpoint_has_lost_has_failed(told):
    told.says("GET", "/v1/videos/video_1", {"error": {}}, status=404)
    assert provider_of(told).poll(VIDEO).state is InvocationState.FAILED


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
def test_a_refusal_says_whether_another_try_makes_sense(told, status, error):
    words = {"error": {"code": "some_code", "message": "a red ball is not allowed"}}
    told.says("POST", "/v1/videos", words, status=status, Retry_After="7")
    provider = provider_of(told)
    with pytest.raises(ProviderError) as caught:
        provider.start(task_of(provider))
    assert type(caught.value) is error
    assert f"HTTP {status} some_code" in str(caught.value)
    assert "red ball" not in str(caught.value)
    if error is ProviderThrottled:
        assert caught.value.retry_after_seconds == 7


def test_a_clip_is_followed_to_its_link_without_the_key(told):
    told.says("GET", "/v1/videos/video_1/content", b"", status=302, Location="/objects/signed")
    told.says("GET", "/objects/signed", b"clip", Content_Type="video/mp4", Content_Length="4")
    assert b"".join(provider_of(told).fetch(VIDEO)) == b"clip"
    assert "Authorization" not in told.asked[-1][2]


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Content_Type": "text/html", "Content_Length": "4"}, "text/html"),
        ({"Content_Type": "video/mp4", "Content_Length": "9"}, "4 of 9 bytes|cannot be reached"),
    ],
)
def test_what_is_no_clip_or_not_all_of_one_is_an_error(told, headers, words):
    told.says("GET", "/v1/videos/video_1/content", b"clip", **headers)
    with pytest.raises(ProviderError, match=words):
        list(provider_of(told).fetch(VIDEO))


def test_an_empty_clip_is_an_error(told):
    told.says("GET", "/v1/videos/video_1/content", b"", Content_Type="video/mp4", Content_Length="0")
    with pytest.raises(ProviderError, match="0 of 0 bytes"):
        list(provider_of(told).fetch(VIDEO))


def test_an_endpoint_without_a_cancel_verb_is_asked_to_delete(told):
    told.says("POST", "/v1/videos/video_1/cancel", {}, status=404)
    told.says("DELETE", "/v1/videos/video_1", {})
    provider_of(told).cancel(VIDEO)
    assert [asked[0] for asked in told.asked] == ["POST", "DELETE"]


def test_nobody_there_is_an_error_that_may_pass():
    provider = open_provider(
        ProviderSettings(provider="http", url="http://127.0.0.1:9/v1", timeout_seconds=1)
    )
    with pytest.raises(ProviderError, match="cannot be reached") as caught:
        provider.poll(VIDEO)
    assert caught.value.retryable


def test_an_id_cannot_lead_anywhere_else(told):
    told.says("GET", "/v1/videos/..%2Fmodels", {"status": "queued"})
    assert provider_of(told).poll(InvocationId("../models")).state is InvocationState.PENDING


def test_a_model_the_endpoint_does_not_have_is_told(told):
    with pytest.raises(ProviderUnusable, match="no model 'veo'"):
        provider_of(told, model="veo").offers()


def test_without_a_configured_model_only_its_namesake_is_asked(told):
    with pytest.raises(ProviderCannot, match="offers nothing"):
        provider_of(told).adapt(
            VideoSpec(**{f: getattr(SPEC, f) for f in SPEC.__slots__} | {"model": "wan"}), ANYTHING
        )


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
def test_a_bad_setting_is_named(fields, option):
    with pytest.raises(SettingsError) as caught:
        open_provider(ProviderSettings(provider="http", **fields))
    assert caught.value.option == option


def test_the_key_is_read_from_its_file_and_shown_nowhere(tmp_path, told):
    (tmp_path / "key").write_text("sk-file\n")
    provider = provider_of(told, key_file=str(tmp_path / "key"))
    provider.offers()
    assert told.asked[-1][2]["Authorization"] == "Bearer sk-file"
    assert "sk-file" not in repr(provider._endpoint)


def test_lists_in_settings_are_read():
    assert parse_sizes("1280x720, 720x1280") == ((1280, 720), (720, 1280))
    assert parse_seconds("4,8.5") == (4.0, 8.5)
    assert (parse_sizes(""), parse_seconds("")) == ((), ())
