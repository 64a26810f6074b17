"""A clip that is watched while it is still being decoded."""

import threading
import time

import httpx
import pytest

from filmgate.jobs import Stage
from tests.service import MOVIE


@pytest.fixture
def video(client):
    return client.post("/v1/videos", json={"prompt": "a red ball"}).json()


class Viewer:
    """Reads a stream in the background."""

    def __init__(self, service, video_id):
        self.received = b""
        self.status = None
        self.error = None
        self._client = service.client()
        self._thread = threading.Thread(target=self._read, args=(f"/v1/videos/{video_id}/stream",))
        self._thread.start()

    def _read(self, path):
        try:
            with self._client, self._client.stream("GET", path) as answer:
                self.status = answer.status_code
                for chunk in answer.iter_raw():
                    self.received += chunk
        except httpx.HTTPError as exc:
            self.error = exc

    def wait_for(self, data):
        deadline = time.monotonic() + 10
        while self.received != data:
            assert time.monotonic() < deadline, self.received
            time.sleep(0.01)

    def join(self):
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self


def test_fragments_arrive_while_the_rest_is_still_being_decoded(service, video):
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


def test_a_late_viewer_starts_at_the_beginning(service, video):
    hand = service.hand()
    hand.take()
    hand.report(Stage.DECODE)
    for number in range(3):
        hand.fragment(number, str(number).encode())
    viewer = Viewer(service, video["id"])
    viewer.wait_for(b"012")
    hand.finish()
    assert viewer.join().error is None


def test_a_finished_clip_is_streamed_whole_and_in_ranges(service, client, video):
    service.hand().make()
    whole = client.get(f"/v1/videos/{video['id']}/stream")
    part = client.get(f"/v1/videos/{video['id']}/stream", headers={"Range": "bytes=10-19"})
    assert (whole.content, part.content, part.status_code) == (MOVIE, MOVIE[10:20], 206)


def test_an_attempt_that_dies_cuts_the_stream_instead_of_ending_it(service, client, video):
    hand = service.hand()
    hand.take()
    hand.report(Stage.DECODE)
    hand.fragment(0, b"half a clip")
    viewer = Viewer(service, video["id"])
    viewer.wait_for(b"half a clip")
    client.post(f"/v1/videos/{video['id']}/cancel")
    hand.finish()
    assert isinstance(viewer.join().error, httpx.RemoteProtocolError)


def test_a_job_that_fails_before_its_first_frame_is_a_404(service, client, video):
    viewer = Viewer(service, video["id"])
    client.post(f"/v1/videos/{video['id']}/cancel")
    assert viewer.join().status == 404
