"""Server-sent events: order, replay, previews, and one query for many watchers."""

import base64
import json
import threading
import time

import pytest

from filmgate.jobs import Stage
from filmgate.store.base import picture_part
from tests.service import running, settings_for
from tests.waiting import wait_until


@pytest.fixture
def video(client):
    return client.post("/v1/videos", json={"prompt": "a red ball"}).json()


class Listener:
    """Collects the events of one stream in the background."""

    def __init__(self, service, video_id, headers=None):
        self.events = []
        self._client = service.client()
        self._arguments = (f"/v1/videos/{video_id}/events", headers or {})
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self):
        path, headers = self._arguments
        with self._client, self._client.stream("GET", path, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            event = {}
            for line in response.iter_lines():
                if line.startswith(":"):
                    continue
                if line:
                    name, _, value = line.partition(": ")
                    event[name] = value
                elif event:
                    self.events.append((event.get("event"), event.get("id"), json.loads(event["data"])))
                    event = {}

    def wait_for(self, is_wanted):
        find = lambda: [event for event in list(self.events) if is_wanted(*event)]  # noqa: E731
        return wait_until(find, interval=0.01, describe=lambda: self.events)[0]

    def join(self):
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.events


def test_a_watcher_receives_every_state_and_stage_in_order(service, video):
    listener = Listener(service, video["id"])
    listener.wait_for(lambda _n, _i, data: data["status"] == "queued")
    hand = service.hand()
    hand.take()
    for stage in (Stage.TEXT, Stage.DENOISE, Stage.DECODE, Stage.UPLOAD):
        hand.report(stage)
    hand.finish()
    events = listener.join()
    stages = [
        data["stage"] for name, _, data in events if name == "status" and data["status"] == "in_progress"
    ]
    assert stages == ["text", "denoise", "decode", "upload"]
    assert events[-1][2]["status"] == "completed"
    ids = [int(i) for _, i, _ in events if i]
    assert ids == sorted(ids)


def test_a_change_is_sent_when_it_is_committed_not_at_the_next_interval(tmp_path):
    interval = 10.0
    with running(settings_for(tmp_path, api__watch_seconds=interval)) as service, service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
        listener = Listener(service, video["id"])
        listener.wait_for(lambda _n, _i, data: data["status"] == "queued")
        hand = service.hand()
        began = time.monotonic()
        hand.take()
        for stage in (Stage.TEXT, Stage.DENOISE, Stage.DECODE):
            hand.report(stage)
            listener.wait_for(lambda _n, _i, data, wanted=stage: data["stage"] == wanted)
        hand.finish()
        assert listener.join()[-1][2]["status"] == "completed"
        assert time.monotonic() - began < 3 * interval, "by polling, each of the four takes an interval"


def test_progress_events_contain_finished_work_and_an_eta(service, video):
    listener = Listener(service, video["id"])
    hand = service.hand()
    hand.take()
    hand.report(done=0)
    listener.wait_for(lambda _n, _i, data: data["stage"] == "denoise")
    time.sleep(0.15)  # the second half is predicted to take as long as the first; 0.05 s would round to 0
    hand.report(done=5, fraction=0.5)
    _, _, halfway = listener.wait_for(lambda name, _i, data: name == "progress" and data["progress"] == 50)
    assert halfway["eta_seconds"] > 0
    hand.finish()
    listener.join()


def test_a_reconnect_replays_missed_events_and_no_others(service, client, video):
    hand = service.hand()
    hand.take()
    hand.report(Stage.TEXT)
    first = Listener(service, video["id"])
    first.wait_for(lambda name, i, data: data.get("stage") == "text")
    seen = max(int(i) for _, i, _ in first.events if i)
    hand.report(Stage.DENOISE)
    hand.report(Stage.DECODE)
    hand.finish()
    first.join()
    again = Listener(service, video["id"], {"Last-Event-ID": str(seen)}).join()
    assert [d["stage"] for _, _, d in again if d.get("is_replay")] == ["denoise", "decode", "decode"]
    assert all(int(i) > seen for _, i, _ in again)
    assert again[-1][2]["status"] == "completed"


def test_each_new_preview_is_sent_once(service, video):
    listener = Listener(service, video["id"])
    listener.wait_for(lambda *_: True)
    hand = service.hand()
    hand.take()
    for number, picture in enumerate((b"first", b"first", b"second")):
        hand.put(picture_part("preview", hand.lease.fence), picture)
        hand.report(Stage.DENOISE, done=number, fraction=number / 10)
        listener.wait_for(lambda _n, _i, data, n=number: data.get("progress") == n * 10)
    hand.finish()
    previews = [data["image"] for name, _, data in listener.join() if name == "preview"]
    pictures = [base64.b64decode(image.removeprefix("data:image/jpeg;base64,")) for image in previews]
    assert pictures == [b"first", b"second"]


def test_a_damaged_preview_does_not_silence_anybody(service, client, video):
    other = client.post("/v1/videos", json={"prompt": "a blue ball"}).json()
    hands = [service.hand(), service.hand()]
    jobs = [hand.take() for hand in hands]
    listeners = [Listener(service, each["id"]) for each in (video, other)]
    hands[0].put(picture_part("preview", hands[0].lease.fence), b"picture")
    folder = service.settings.data / "objects" / jobs[0].tenant_id / jobs[0].id
    (folder / picture_part("preview", hands[0].lease.fence)).write_bytes(b"")
    for hand in hands:
        hand.report(Stage.DECODE, done=1)
    for listener in listeners:
        listener.wait_for(lambda _n, _i, data: data.get("stage") == "decode")
    for hand in hands:
        hand.finish()
    for listener in listeners:
        assert listener.join()[-1][2]["status"] == "completed"


def test_a_new_queue_position_is_an_event(service, client, video):
    second = client.post("/v1/videos", json={"prompt": "a blue ball"}).json()
    listener = Listener(service, second["id"])
    listener.wait_for(lambda _n, _i, data: data["queue_position"] == 2)
    client.post(f"/v1/videos/{video['id']}/cancel")
    listener.wait_for(lambda _n, _i, data: data["queue_position"] == 1)
    client.post(f"/v1/videos/{second['id']}/cancel")
    assert listener.join()[-1][2]["error"]["code"] == "cancelled"


def test_the_stream_of_an_ended_job_has_one_event(service, client, video):
    client.post(f"/v1/videos/{video['id']}/cancel")
    (event,) = Listener(service, video["id"]).join()
    assert event[2]["status"] == "failed"


def test_many_watchers_need_one_query_per_interval(tmp_path):
    with running(settings_for(tmp_path, api__watch_seconds=0.1)) as service, service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
        calls = []
        reader, changes = service.services.reader, service.services.reader.changes
        reader.changes = lambda seen: calls.append(time.monotonic()) or changes(seen)
        listeners = [Listener(service, video["id"]) for _ in range(20)]
        for listener in listeners:
            listener.wait_for(lambda *_: True)
        calls.clear()
        wait_until(lambda: len(calls) > 10)
        assert calls[10] - calls[0] > 0.9, "ten intervals of 0.1 s, independent of the number of watchers"
        client.post(f"/v1/videos/{video['id']}/cancel")
        assert {listener.join()[-1][2]["status"] for listener in listeners} == {"failed"}


def test_the_stream_of_a_removed_job_ends(service, client, video, monkeypatch):
    monkeypatch.setattr("filmgate.api.watch._REMOVAL_CHECK_SECONDS", 0.1)
    listener = Listener(service, video["id"])
    listener.wait_for(lambda *_: True)
    client.delete(f"/v1/videos/{video['id']}")
    assert listener.join()[-1][0] in ("gone", "status")


def test_events_of_an_unknown_video_are_a_404(client):
    assert client.get("/v1/videos/video_0/events").status_code == 404
