"""Streams of clips that are still being decoded."""

import gc
import os
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from filmgate.jobs import Stage
from filmgate.store.base import ObjectName
from tests.service import CLIP
from tests.waiting import wait_until


@pytest.fixture
def video(client):
    return client.post("/v1/videos", json={"prompt": "a red ball"}).json()


class Viewer:
    """Reads a stream in the background."""

    def __init__(self, service, video_id, link=None):
        self.received = b""
        self.status = None
        self.error = None
        path = link or f"/v1/videos/{video_id}/stream"
        self._client = service.client() if link is None else httpx.Client(base_url=service.url)
        self._thread = threading.Thread(target=self._read, args=(path,))
        self._thread.start()

    def _read(self, path):
        try:
            with self._client, self._client.stream("GET", path) as response:
                self.status = response.status_code
                for chunk in response.iter_raw():
                    self.received += chunk
        except httpx.HTTPError as exc:
            self.error = exc

    def wait_for(self, data):
        wait_until(lambda: self.received == data, interval=0.01, describe=lambda: self.received)

    def join(self):
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self


def test_fragments_are_streamed_while_the_clip_is_decoded(service, video):
    hand = service.hand()
    viewer = Viewer(service, video["id"])
    hand.take()
    hand.report(Stage.DECODE)
    hand.fragment(0, b"header")
    viewer.wait_for(b"header")
    hand.fragment(1, b" one")
    viewer.wait_for(b"header one")
    hand.fragment(2, b" two")
    hand.fragment(3, b" three")
    viewer.wait_for(b"header one two three")
    hand.finish()
    assert viewer.join().error is None
    assert viewer.received == b"header one two three"


def test_a_late_viewer_receives_all_fragments(service, video):
    hand = service.hand()
    hand.take()
    hand.report(Stage.DECODE)
    for number in range(3):
        hand.fragment(number, str(number).encode())
    viewer = Viewer(service, video["id"])
    viewer.wait_for(b"012")
    hand.finish()
    assert viewer.join().error is None


def test_the_stream_of_a_finished_clip_supports_ranges(service, client, video):
    service.hand().make()
    whole = client.get(f"/v1/videos/{video['id']}/stream")
    part = client.get(f"/v1/videos/{video['id']}/stream", headers={"Range": "bytes=10-19"})
    assert (whole.content, part.content, part.status_code) == (CLIP, CLIP[10:20], 206)


def test_the_connection_is_aborted_when_the_attempt_fails(service, client, video):
    hand = service.hand()
    hand.take()
    hand.report(Stage.DECODE)
    hand.fragment(0, b"half a clip")
    viewer = Viewer(service, video["id"])
    viewer.wait_for(b"half a clip")
    client.post(f"/v1/videos/{video['id']}/cancel")
    hand.finish()
    assert isinstance(viewer.join().error, httpx.RemoteProtocolError)


def test_the_connection_is_aborted_when_the_last_fragments_are_already_deleted(service, video):
    hand = service.hand()
    hand.take()
    hand.report(Stage.DECODE)
    hand.fragment(0, b"half a clip")
    viewer = Viewer(service, video["id"])
    viewer.wait_for(b"half a clip")
    hand.fragments = 2
    hand.finish(is_tidy=True)
    assert isinstance(viewer.join().error, httpx.RemoteProtocolError)


def test_the_stream_of_a_job_that_fails_before_its_first_frame_is_a_404(service, client, video):
    viewer = Viewer(service, video["id"])
    client.post(f"/v1/videos/{video['id']}/cancel")
    assert viewer.join().status == 404


def test_a_link_plays_the_stream_without_a_key(service, client, video):
    before = int(time.time())
    link = client.post(f"/v1/videos/{video['id']}/stream-link").json()
    assert link["object"] == "video.stream_link"
    assert link["id"] == video["id"]
    assert before + 900 <= link["expires_at"] <= time.time() + 900
    hand = service.hand()
    viewer = Viewer(service, video["id"], link["url"])
    hand.take()
    hand.report(Stage.DECODE)
    hand.fragment(0, b"header")
    viewer.wait_for(b"header")
    hand.fragment(1, b" one")
    hand.finish()
    assert viewer.join().error is None
    assert viewer.received == b"header one"
    whole = httpx.get(service.url + link["url"])
    part = httpx.get(service.url + link["url"], headers={"Range": "bytes=10-19"})
    assert (whole.content, part.content) == (CLIP, CLIP[10:20])


def test_a_link_is_invalid_after_its_expiry_or_without_its_video(service, client, video, monkeypatch):
    service.hand().make()
    link = service.url + client.post(f"/v1/videos/{video['id']}/stream-link").json()["url"]
    assert httpx.get(link).status_code == 200
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(service.services.stream_links, "_clock", lambda: now + 901)
        expired = httpx.get(link)
    assert (expired.status_code, expired.json()["error"]["code"]) == (403, "link_invalid")
    assert "expired" in expired.json()["error"]["message"]
    client.delete(f"/v1/videos/{video['id']}")
    assert httpx.get(link).status_code == 403


def test_a_link_gives_access_to_nothing_but_the_stream(service, client, video):
    path, _, query = client.post(f"/v1/videos/{video['id']}/stream-link").json()["url"].partition("?")
    for other in ("", "/content", "/events"):
        response = httpx.get(f"{service.url}{path.removesuffix('/stream')}{other}?{query}")
        assert response.status_code == 401, other
    assert httpx.post(f"{service.url}{path}-link?{query}").status_code == 401
    client.post(f"/v1/videos/{video['id']}/cancel")


def test_links_and_open_streams_of_a_disabled_tenant_end(service):
    key = service.add_tenant("ending")
    with service.client(key) as client:
        done = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
        job = service.hand().make()
        assert job.id == done["id"]
        link = service.services.store.link(ObjectName(job.tenant_id, job.id, job.clip.part), 60)
        assert client.get(link).status_code == 200
        video = client.post("/v1/videos", json={"prompt": "a blue ball"}).json()
        hand = service.hand()
        hand.take()
        hand.report(Stage.DECODE)
        hand.fragment(0, b"first")
        with (
            client.stream("GET", f"/v1/videos/{video['id']}/events") as events,
            client.stream("GET", f"/v1/videos/{video['id']}/stream") as stream,
        ):
            chunks = stream.iter_raw()
            assert next(chunks) == b"first"
            service.services.tenants.disable("ending")
            assert client.get(link).status_code == 403
            assert "event: gone" in "".join(events.iter_text())
            with pytest.raises(httpx.HTTPError):
                list(chunks)


def test_a_download_in_progress_of_a_disabled_tenant_ends(service):
    frames = b"frame" * (4 << 20)  # more than the buffers of a connection hold
    with service.client(service.add_tenant("closing")) as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
        service.hand().make(frames)
        with client.stream("GET", f"/v1/videos/{video['id']}/content") as download:
            chunks = download.iter_raw()
            received = len(next(chunks))
            service.services.tenants.disable("closing")
            with pytest.raises(httpx.HTTPError):
                received += sum(map(len, slowly(chunks, service)))
    assert received < len(frames)


def slowly(chunks, service):
    """The chunks; after the first one, wait until the server knows that the tenant is disabled."""
    wait_until(lambda: not service.services.enabled.has("closing"))
    yield from chunks


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/fd")
def test_a_viewer_who_leaves_closes_the_file_of_the_clip(service, client, video):
    clip = service.hand().make(os.urandom(1 << 20) * 40).clip.part

    def is_open():
        return any(clip in str(entry.resolve()) for entry in Path("/proc/self/fd").iterdir())

    gc.disable()  # without a collector that closes it later
    try:
        with client.stream("GET", f"/v1/videos/{video['id']}/content") as response:
            chunks = response.iter_raw(1000)  # closes the connection with its last reference
            next(chunks)
            assert is_open()
        wait_until(lambda: not is_open())
    finally:
        gc.enable()
