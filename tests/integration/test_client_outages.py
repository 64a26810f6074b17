"""filmgate.client when requests, responses and files fail: what is tried again, and what is left."""

import os
from pathlib import Path

import httpx
import pytest

from filmgate.client import Filmgate, RequestFailed
from filmgate.client.files import PartialFile
from filmgate.client.protocol import MAX_ATTEMPTS, Call, delay_before_retry
from filmgate.errors import WriteError
from tests.clients import both
from tests.full_disk import full_disk


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
            video = client.create("a red ball bounces")
    assert sent == [video.id, video.id]


@pytest.fixture
def no_pauses(monkeypatch):
    def retry_at_once(response, attempt):
        return None if delay_before_retry(response, attempt) is None else 0.0

    monkeypatch.setattr("filmgate.client.operations.delay_before_retry", retry_at_once)


LOST = httpx.ReadError("the connection was lost")
REFUSED = httpx.ConnectError("nothing listens")


@both
@pytest.mark.parametrize("lost", [LOST, 504], ids=["by the network", "by a proxy"])
def test_a_video_that_a_lost_response_deleted_is_deleted(client_type, lost, no_pauses):
    answers = [REFUSED, lost, 503, 404]
    delete(client_type, answers)
    assert answers == []


@both
@pytest.mark.parametrize("before", [[], [REFUSED], [503]], ids=["first", "refused", "busy"])
def test_deleting_a_video_that_does_not_exist_is_an_error(client_type, before, no_pauses):
    """No server can have deleted it: the request was not sent before, or not accepted."""
    answers = [*before, 404]
    with pytest.raises(RequestFailed) as caught:
        delete(client_type, answers)
    assert (caught.value.status, answers) == (404, [])


@both
def test_only_a_lost_delete_may_find_nothing(client_type, no_pauses):
    answers = [LOST, 404]
    with (
        client_type("http://x", transport=in_turn(answers)) as client,
        pytest.raises(RequestFailed) as caught,
    ):
        client.get("video_1")
    assert (caught.value.status, caught.value.reason) == (404, "")


def delete(client_type, answers):
    with client_type("http://x", transport=in_turn(answers)) as client:
        client.delete("video_1")


def in_turn(answers):
    """A server that responds with these statuses, and connections that fail with these errors."""

    def send(_request):
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return httpx.Response(found)

    return httpx.MockTransport(send)


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


@both
def test_an_empty_body_is_an_empty_file_in_a_new_folder(client_type, tmp_path):
    send = httpx.MockTransport(lambda _request: httpx.Response(200))
    with client_type("http://x", transport=send) as client:
        path = client.download("video_1", tmp_path / "new" / "clip.mp4")
    assert (path.read_bytes(), list(path.parent.iterdir())) == (b"", [path])


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "taken").write_bytes(b"x")
    error = pytest.raises(WriteError, match="clip.mp4 cannot be written")
    with error, PartialFile(tmp_path / "taken" / "clip.mp4") as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_none(tmp_path):
    # The chunk is in a buffer until the file is closed.
    error = pytest.raises(WriteError, match="clip.mp4 cannot be written")
    with error, full_disk(10), PartialFile(tmp_path / "clip.mp4") as file:
        file.write(b"x" * 100)
    (tmp_path / "taken").mkdir()
    with pytest.raises(WriteError, match="taken cannot be written"), PartialFile(tmp_path / "taken") as file:
        file.write(b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_download_replaces_files_only(tmp_path):
    """For root, `filmgate jobs download ID -o /dev/null` replaced the device by the clip."""
    pipe, clip, link = tmp_path / "pipe", tmp_path / "clip.mp4", tmp_path / "link.mp4"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path()):
        with pytest.raises(WriteError, match="it is not a regular file"), PartialFile(path) as file:
            file.write(b"x")
    assert (pipe.is_fifo(), list(tmp_path.iterdir())) == (True, [pipe])
    clip.write_bytes(b"old")
    link.symlink_to(clip)
    with PartialFile(link) as file:
        file.write(b"new")
    assert (link.is_symlink(), clip.read_bytes()) == (True, b"new")


@pytest.mark.parametrize(
    ("status", "headers", "delay"),
    [(429, {"retry-after": "7"}, 7.0), (503, {"x-should-retry": "false"}, None), (400, {}, None)],
)
def test_the_server_decides_what_is_retried(status, headers, delay):
    assert delay_before_retry(httpx.Response(status, headers=headers), 1) == delay
    assert delay_before_retry(httpx.Response(503), 5) is None
    assert Call("GET", "/").options == {}


@both
def test_an_unreachable_server_is_an_error_with_the_reason(client_type, no_pauses):
    def refuse(_request):
        raise httpx.ConnectError("certificate verify failed")

    send = httpx.MockTransport(refuse)
    with client_type("http://x", transport=send) as client, pytest.raises(RequestFailed) as caught:
        client.get("video_1")
    assert "http://x cannot be reached: certificate verify failed; " in str(caught.value)
