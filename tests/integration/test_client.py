"""filmgate.client against a server: both clients do the same."""

import asyncio
import inspect
import subprocess
import sys
import threading

import httpx
import pytest

from filmgate.client import AsyncFilmgate, Filmgate, RequestFailed, VideoFailed
from filmgate.client.operations import Pause
from filmgate.client.protocol import Call, delay_before_retry
from filmgate.jobs import Stage
from tests.images import png
from tests.service import CLIP, THUMBNAIL

PROMPT = "a red ball bounces"


class Waiting:
    """An AsyncFilmgate whose methods block, so that one test drives both clients."""

    def __init__(self, url, key):
        self._loop = asyncio.new_event_loop()
        self._client = AsyncFilmgate(url, key)

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def call(*args, **options):
            found = method(*args, **options)
            if inspect.isasyncgen(found):
                return self._loop.run_until_complete(_collect(found))
            return self._loop.run_until_complete(found)

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self._loop.close()


async def _collect(generator):
    return [item async for item in generator]


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
    done = sdk.wait(video, on_progress=seen.append, is_shown=True)
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
    finish = threading.Timer(0.1, hand.finish)
    finish.start()
    events = list(sdk.events(video))
    finish.join()
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
        waiting = client._wait("video_1", {})
        assert next(waiting).options == {}
        asked = waiting.send(answer("in_progress"))
        assert asked.options["headers"] == {"Prefer": "wait=5"}
        assert waiting.send(answer("in_progress")) == Pause(5.0)
        assert waiting.send(None) == asked
        assert waiting.send(answer("in_progress", {"preference-applied": "wait=5"})) == asked
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


def test_a_server_that_does_not_run_is_named(monkeypatch):
    monkeypatch.setattr("filmgate.client.blocking.time.sleep", lambda _seconds: None)
    with Filmgate("http://127.0.0.1:9") as client, pytest.raises(RequestFailed, match="filmgate serve"):
        client.list()


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
        assert client.list(limit=1).videos


def test_the_client_imports_nothing_of_the_server():
    heavy = "('fastapi', 'sqlalchemy', 'torch')"
    code = f"import sys, filmgate.client; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
