"""filmgate.client against a server: both clients do the same."""

import asyncio
import inspect
import subprocess
import sys
import threading
from contextlib import suppress

import httpx
import pytest

from filmgate.client import AsyncFilmgate, Filmgate, RequestFailed, VideoFailed
from filmgate.client.files import PartialFile
from filmgate.client.operations import Pause
from filmgate.client.protocol import MAX_ATTEMPTS, Call, delay_before_retry
from filmgate.errors import UsageError, WriteError
from filmgate.jobs import Stage
from tests.full_disk import full_disk
from tests.images import png
from tests.service import CLIP, THUMBNAIL

PROMPT = "a red ball bounces"


class Waiting:
    """An AsyncFilmgate whose methods block, so that one test drives both clients."""

    def __init__(self, url, key="", **options):
        self._loop = asyncio.new_event_loop()
        self._client = AsyncFilmgate(url, key, **options)

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*args, **options):
            found = method(*args, **options)
            return self._iterate(found) if inspect.isasyncgen(found) else self._loop.run_until_complete(found)

        return call

    def _iterate(self, generator):
        with suppress(StopAsyncIteration):
            while True:
                yield self._loop.run_until_complete(anext(generator))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self._loop.close()


both = pytest.mark.parametrize("client_type", [Filmgate, Waiting], ids=["blocking", "async"])


@pytest.fixture(params=[Filmgate, Waiting], ids=["blocking", "async"])
def sdk(request, service):
    with request.param(f"{service.url}/v1/", service.key) as sdk:
        yield sdk


def test_a_video_is_created_waited_for_and_downloaded(service, sdk, tmp_path):
    (tmp_path / "first.png").write_bytes(png())
    video = sdk.create(PROMPT, seconds=2, seed=7, image=tmp_path / "first.png")
    assert (video.status, video.seconds, video.is_final) == ("queued", "2", False)
    service.hand().make()
    seen = []
    done = sdk.wait(video, on_progress=seen.append, show_progress=True)
    assert (done.status, done.summary, seen[-1]) == ("completed", "completed", done)
    assert sdk.download(done, tmp_path / "new" / "clip.mp4").read_bytes() == CLIP
    assert sdk.download(done.id, tmp_path / "still.jpg", "thumbnail").read_bytes() == THUMBNAIL
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["clip.mp4", "first.png", "still.jpg"]
    assert b"".join(sdk.stream(done)) == CLIP
    assert [name for name, _ in sdk.events(done)] == ["status"]


def test_a_running_video_is_followed_until_it_ends(service, sdk):
    video = sdk.create(PROMPT)
    hand = service.hand()
    hand.take()
    hand.report(Stage.DENOISE, 5, 10, 0.5)
    assert sdk.get(video).summary.startswith("denoise, 50 %")
    events = []
    for event in sdk.events(video):
        if not events:
            hand.finish()
        events.append(event)
    assert events[0][1]["progress"] == 50
    assert events[-1][1]["status"] == "completed"


def test_waiting_for_a_video_ends_with_it(service, sdk):
    video = sdk.create(PROMPT)
    hand = service.hand()
    hand.take()
    hand.report(Stage.DENOISE, 0, 10, 0.0)
    finish = threading.Timer(0.1, hand.finish)
    seen = []

    def look(current):
        seen.append(current.status)
        if len(seen) == 1:
            finish.start()

    # Every look but the first waits in the server, which answers when the video ends.
    assert sdk.wait(video, on_progress=look).status == "completed"
    finish.join()
    assert seen in (["in_progress", "completed"], ["in_progress", "in_progress", "completed"])


def test_a_server_that_does_not_wait_is_asked_again_after_a_pause():
    with Filmgate("http://127.0.0.1:9", "key") as client:
        waiting = client._wait("video_1")
        assert next(waiting).options == {}
        asked = waiting.send(answer("in_progress"))
        assert asked.options["headers"] == {"Prefer": "wait=5"}
        assert waiting.send(answer("in_progress")) == Pause(5.0)
        assert waiting.send(None) == asked
        assert waiting.send(answer("in_progress", {"preference-applied": "wait=5"})) == asked
        with pytest.raises(StopIteration):
            waiting.send(answer("completed"))


def test_a_timeout_shorter_than_the_polling_interval_is_waited_for():
    with Filmgate("http://127.0.0.1:9", "key") as client:
        waiting = client._wait("video_1", timeout_seconds=2.2)
        next(waiting)
        asked = waiting.send(answer("in_progress"))
        assert asked.options["headers"] == {"Prefer": "wait=2"}
        with pytest.raises(StopIteration):
            waiting.send(answer("completed"))


def answer(status, headers=None):
    fields = {"id": "video_1", "progress": 0, "model": "m", "size": "s", "seconds": "1", "created_at": 0}
    headers = {"openai-poll-after-ms": "5000"} | (headers or {})
    return httpx.Response(200, json=fields | {"status": status}, headers=headers)


def test_videos_are_listed_cancelled_and_deleted(sdk):
    videos = [sdk.create(PROMPT) for _ in range(2)]
    page = sdk.list(limit=1)
    assert (page.videos[0].id, page.next_after) == (videos[1].id, videos[1].id)
    assert sdk.list(limit=1, after=page.next_after).videos[0].id == videos[0].id
    assert sdk.cancel(videos[0]).summary.startswith("failed: ")
    with pytest.raises(VideoFailed, match=videos[0].id):
        sdk.wait(videos[0])
    with pytest.raises(VideoFailed, match="is not completed after 0 s"):
        sdk.wait(videos[1], timeout_seconds=0)
    for video in videos:
        sdk.delete(video)
    with pytest.raises(RequestFailed) as caught:
        sdk.get(videos[0])
    assert (caught.value.status, caught.value.reason) == (404, "video_not_found")
    assert caught.value.request_id.startswith("req_")
    assert "flipbook" in [model["id"] for model in sdk.models()]


def test_an_error_of_the_server_has_its_message(sdk, tmp_path):
    with pytest.raises(RequestFailed, match="renders 0.25 to 12 seconds"):
        sdk.create(PROMPT, seconds=60)
    with pytest.raises(RequestFailed, match="no such video"):
        sdk.download("video_" + "0" * 32, tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", ["lost response", "503"])
def test_a_retried_create_is_the_same_job(service, monkeypatch, failure):
    monkeypatch.setattr("filmgate.client.blocking.time.sleep", lambda _seconds: None)
    with httpx.Client() as plain:
        sent = []

        def send(request):
            request.headers["host"] = request.url.netloc.decode()
            response = plain.send(request)
            response.read()
            sent.append(response.json()["id"])
            if len(sent) == 1 and failure == "503":
                return httpx.Response(503)
            if len(sent) == 1:
                raise httpx.ReadError("the connection was lost")
            return response

        with Filmgate(service.url, service.key, transport=httpx.MockTransport(send)) as client:
            video = client.create(PROMPT)
    assert sent == [video.id, video.id]


@pytest.fixture
def no_pauses(monkeypatch):
    def retry_at_once(response, attempt):
        return None if delay_before_retry(response, attempt) is None else 0.0

    monkeypatch.setattr("filmgate.client.operations.delay_before_retry", retry_at_once)


# Every way to call the server: one request, and responses that are read while they arrive.
CALLS = {
    "list": lambda client, folder: client.list(),
    "download": lambda client, folder: client.download("video_1", folder / "clip.mp4"),
    "stream": lambda client, folder: list(client.stream("video_1")),
    "events": lambda client, folder: list(client.events("video_1")),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


@both
@every_call
def test_a_server_that_does_not_run_is_named(client_type, call, no_pauses, tmp_path):
    with client_type("http://127.0.0.1:9") as client, pytest.raises(RequestFailed, match="filmgate serve"):
        call(client, tmp_path)
    assert list(tmp_path.iterdir()) == []


@both
@every_call
def test_a_busy_server_is_asked_again(client_type, call, no_pauses, tmp_path):
    answers = [httpx.Response(status) for status in (408, 429, 502, 503)]
    body = b'event: status\ndata: {"status": "completed"}\n\n'
    page = {"data": [], "has_more": False, "last_id": None}

    def send(request):
        assert request.url.path.startswith("/v1/videos")
        if answers:
            return answers.pop(0)
        return httpx.Response(200, json=page) if call is CALLS["list"] else httpx.Response(200, content=body)

    with client_type("http://x", transport=httpx.MockTransport(send)) as client:
        assert call(client, tmp_path)
    assert answers == []


@both
def test_an_event_stream_that_ends_at_once_is_opened_again_five_times_at_most(client_type, no_pauses):
    opened = []
    send = httpx.MockTransport(lambda request: opened.append(request) or httpx.Response(200))
    with client_type("http://x", transport=send) as client, pytest.raises(RequestFailed):
        list(client.events("video_1"))
    assert len(opened) == MAX_ATTEMPTS


@both
def test_an_event_that_was_cut_off_is_read_again(client_type, no_pauses):
    first = (
        b'id: 1\nevent: status\ndata: {"status": "queued"}\n\nid: 2\nevent: status\ndata: {"status": "comp'
    )
    second = b': hello\n\nid: 2\nevent: status\ndata: {"status":\ndata: "completed"}\n\n'
    bodies, asked = [first, second], []

    def send(request):
        asked.append(request.headers.get("last-event-id"))
        return httpx.Response(200, content=bodies.pop(0))

    with client_type("http://x", transport=httpx.MockTransport(send)) as client:
        events = list(client.events("video_1"))
    assert events == [("status", {"status": "queued"}), ("status", {"status": "completed"})]
    assert asked == [None, "1"]


class Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that is cut off."""

    def __iter__(self):
        yield b"half a"
        raise httpx.ReadError("the connection was lost")

    async def __aiter__(self):
        for chunk in self:
            yield chunk


@both
@pytest.mark.parametrize("name", ["download", "stream"])
def test_a_body_that_is_cut_off_is_an_error_and_leaves_no_file(client_type, name, tmp_path):
    send = httpx.MockTransport(lambda _request: httpx.Response(200, stream=Cut()))
    with client_type("http://x", transport=send) as client, pytest.raises(RequestFailed) as caught:
        CALLS[name](client, tmp_path)
    assert (caught.value.reason, list(tmp_path.iterdir())) == ("connection_lost", [])


@both
@pytest.mark.parametrize("name", ["download", "list"])
def test_a_body_that_cannot_be_decoded_is_an_error(client_type, name, tmp_path, no_pauses):
    def send(_request):
        stream = httpx.ByteStream(b"not compressed")
        return httpx.Response(200, headers={"content-encoding": "gzip"}, stream=stream)

    with (
        client_type("http://x", transport=httpx.MockTransport(send)) as client,
        pytest.raises(RequestFailed, match="http://x"),
    ):
        CALLS[name](client, tmp_path)


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_none(tmp_path):
    # The chunk is in a buffer until the file is closed.
    error = pytest.raises(WriteError, match="clip.mp4 cannot be written")
    with error, full_disk(10), PartialFile(tmp_path / "clip.mp4") as file:
        file.write(b"x" * 100)
    (tmp_path / "taken").mkdir()
    with pytest.raises(WriteError, match="taken cannot be written"), PartialFile(tmp_path / "taken") as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("status", "headers", "delay"),
    [(429, {"retry-after": "7"}, 7.0), (503, {"x-should-retry": "false"}, None), (400, {}, None)],
)
def test_the_server_decides_what_is_retried(status, headers, delay):
    assert delay_before_retry(httpx.Response(status, headers=headers), 1) == delay
    assert delay_before_retry(httpx.Response(503), 5) is None
    assert Call("GET", "/").options == {}


def test_the_client_of_a_local_server_reads_its_key_file(service):
    with Filmgate.local(service.settings.data, service.url) as client:
        video = client.create(PROMPT)
        assert client.list(limit=1).videos[0].id == video.id


@pytest.mark.parametrize("content", [b"\x89PNG", b"", b" \n", b"root:x:0\ndaemon:x:1\n"])
def test_a_file_that_contains_no_key_is_named(tmp_path, content):
    (tmp_path / "local.key").write_bytes(content)
    with pytest.raises(UsageError, match=r"local\.key cannot be read: it contains no key"):
        Filmgate.local(tmp_path)


@pytest.mark.parametrize("client_type", [Filmgate, AsyncFilmgate])
@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://[::1", ""])
def test_a_text_that_is_not_a_url_is_an_error_before_any_request(client_type, url):
    with pytest.raises(UsageError, match="is not the URL of a server, such as http://"):
        client_type(url)


@both
@pytest.mark.parametrize("content", [b"<html></html>", b"[]", b'{"data": [{}]}', b'{"data": 1}', b'"text"'])
@pytest.mark.parametrize("call", [lambda c: c.list(), lambda c: c.get("video_1")], ids=["list", "get"])
def test_the_response_of_another_service_is_an_error_that_names_the_url(client_type, content, call):
    send = httpx.MockTransport(lambda _request: httpx.Response(200, content=content))
    with client_type("http://x", transport=send) as client, pytest.raises(RequestFailed) as caught:
        call(client)
    assert str(caught.value).startswith("http://x/v1/videos")
    assert caught.value.reason == "unexpected_response"


@both
def test_an_unreachable_server_is_an_error_with_the_reason(client_type, no_pauses):
    def refuse(_request):
        raise httpx.ConnectError("certificate verify failed")

    send = httpx.MockTransport(refuse)
    with client_type("http://x", transport=send) as client, pytest.raises(RequestFailed) as caught:
        client.get("video_1")
    assert "http://x cannot be reached: certificate verify failed; " in str(caught.value)


def test_the_client_imports_nothing_of_the_server():
    heavy = "('fastapi', 'sqlalchemy', 'torch')"
    code = f"import sys, filmgate.client; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
