"""filmgate.client against a server: both clients do the same."""

import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

from filmgate.api.live import FIRST_FRAGMENT_SECONDS
from filmgate.client import AsyncFilmgate, Filmgate, RequestFailed, VideoFailed
from filmgate.client.operations import Pause
from filmgate.errors import UsageError
from filmgate.jobs import Stage
from tests.clients import Waiting, both
from tests.images import png
from tests.service import CLIP, THUMBNAIL

PROMPT = "a red ball bounces"


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
    hand.announce()
    hand.take()
    assert sdk.get(video).summary.startswith("starting, about ")
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


@both
def test_the_time_that_the_server_waits_is_added_to_the_read_timeout(client_type):
    timeouts, states = [], ["in_progress", "completed"]

    def send(request):
        timeouts.append((request.headers.get("prefer"), request.extensions["timeout"]))
        return answer(states.pop(0), {"openai-poll-after-ms": "10000"})

    with client_type("http://x", timeout_seconds=5, transport=httpx.MockTransport(send)) as client:
        client.wait("video_1")
    plain = dict.fromkeys(("connect", "read", "write", "pool"), 5)
    assert timeouts == [(None, plain), ("wait=10", plain | {"read": 15})]


@both
def test_a_stream_is_waited_for_as_long_as_the_server_waits_for_its_first_fragment(client_type):
    timeouts = []

    def send(request):
        timeouts.append(request.extensions["timeout"]["read"])
        return httpx.Response(200, content=b"clip")

    with client_type("http://x", timeout_seconds=5, transport=httpx.MockTransport(send)) as client:
        assert list(client.stream("video_1")) == [b"clip"]
    assert timeouts == [5 + FIRST_FRAGMENT_SECONDS]


@both
def test_a_wait_that_is_interrupted_ends_its_progress_bar(client_type, monkeypatch):
    """A terminal or notebook keeps the traceback, and with it everything that was not closed."""
    ended = []

    @contextmanager
    def show(*, is_wanted):
        try:
            yield lambda _video: None
        finally:
            ended.append(is_wanted)

    def interrupt(_request):
        raise InterruptedError

    monkeypatch.setattr("filmgate.client.operations.shown_progress", show)
    with client_type("http://x", transport=httpx.MockTransport(interrupt)) as client:
        with pytest.raises(InterruptedError) as kept:
            client.wait("video_1", show_progress=True)
        assert (ended, bool(kept)) == ([True], True)


def test_a_client_without_a_timeout_waits_without_one():
    with Filmgate("http://127.0.0.1:9", timeout_seconds=None) as client:
        waiting = client._wait("video_1")
        next(waiting)
        assert waiting.send(answer("in_progress")).options["timeout"] == httpx.Timeout(None)


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
        sdk.download("video_" + "0" * 32, tmp_path / "new" / "clips" / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


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


def test_the_client_imports_nothing_of_the_server():
    heavy = "('fastapi', 'sqlalchemy', 'torch')"
    code = f"import sys, filmgate.client; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
