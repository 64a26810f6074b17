"""From a request to a clip in a <video> tag, in a real Chromium."""

import io

import av
import httpx
import numpy as np
import pytest
from playwright.sync_api import expect

from filmgate.database import DEFAULT_FILE
from filmgate.jobs import Stage
from tests.pauses import pause
from tests.server_process import ServerProcess
from tests.service import running, settings_for, write_cards
from tests.waiting import wait_until

PLAY = """async (id) => {
    const video = document.createElement("video");
    video.muted = true;
    video.src = `/v1/videos/${id}/stream`;
    video.style.width = "256px";
    document.body.replaceChildren(video);
    window.video = video;
    window.frames_shown = 0;
    const count = () => { window.frames_shown++; video.requestVideoFrameCallback(count); };
    video.requestVideoFrameCallback(count);
    video.play().catch((error) => { window.play_error = String(error); });
}"""
CREATE = """async (body) => {
    const headers = {"Content-Type": "application/json"};
    const response = await fetch("/v1/videos", {method: "POST", headers, body: JSON.stringify(body)});
    return await response.json();
}"""
SHOWN_WIDTH = """(kind) => {
    const video = document.querySelector(`video[data-kind=${kind}]`);
    return video && video.readyState >= 2 && video.videoWidth;
}"""
# Chromium reads about twenty frames of a <video src> before it shows the first.
FRAMES_BEFORE_THE_FIRST_IS_SHOWN = 28
STATUS = "async (id) => (await (await fetch(`/v1/videos/${id}`)).json()).status"


class Recorder(io.RawIOBase):
    """Records the writes of the muxer, one entry per flush."""

    def __init__(self):
        self.writes = []

    def writable(self):
        return True

    def write(self, data):
        self.writes.append(bytes(data))
        return len(data)


def make_fragments(frames=48, fps=16):
    """A fragmented MP4: the header, then one fragment per frame."""
    recorder = Recorder()
    options = {"movflags": "frag_every_frame+empty_moov+default_base_moof"}
    noise = np.random.default_rng(7)
    with av.open(recorder, "w", format="mp4", options=options) as container:
        stream = container.add_stream(
            "libx264", rate=fps, options={"preset": "ultrafast", "tune": "zerolatency"}
        )
        stream.width = stream.height = 128
        stream.pix_fmt = "yuv420p"
        for _ in range(frames):
            pixels = noise.integers(0, 256, (128, 128, 3), np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        container.mux(stream.encode())
    return recorder.writes


def test_the_first_frame_is_shown_before_the_last_one_is_made(page, tmp_path):
    fragments = make_fragments()
    shown = FRAMES_BEFORE_THE_FIRST_IS_SHOWN
    early, late = fragments[:shown], fragments[shown:]
    with running(settings_for(tmp_path, api__open=True)) as service:
        page.goto(f"{service.url}/healthz")
        video_id = page.evaluate(CREATE, {"prompt": "a red ball", "seconds": "3"})["id"]
        hand = service.hand()
        hand.take()
        hand.report(Stage.DECODE)
        page.evaluate(PLAY, video_id)
        for number, fragment in enumerate(early):
            hand.fragment(number, fragment)
        page.wait_for_function("window.frames_shown > 0", timeout=120_000)
        assert page.evaluate(STATUS, video_id) == "in_progress"
        assert page.evaluate("window.video.videoWidth") == 128
        for number, fragment in enumerate(late, len(early)):
            hand.fragment(number, fragment)
        page.wait_for_function("window.video.currentTime > 1.5", timeout=120_000)
        hand.finish(b"".join(fragments))
        page.wait_for_function("window.video.ended", timeout=120_000)
        assert page.evaluate("window.video.error") is None
        assert page.evaluate("window.video.duration") == pytest.approx(3.0, abs=0.2)


def newest_video(server):
    videos = httpx.get(f"{server.url}/v1/videos", params={"limit": 1}).json()["data"]
    return videos[0] if videos else {"id": None, "progress": 0}


def count_frames(data):
    """The frames in the beginning of a clip."""
    try:
        with av.open(io.BytesIO(data)) as container:
            return sum(1 for packet in container.demux(video=0) if packet.size)
    except av.FFmpegError:
        return 0


def read_frames(server, video_id, count):
    """Read the stream of a clip until it has this many frames, or ends."""
    data = b""
    with httpx.stream("GET", f"{server.url}/v1/videos/{video_id}/stream", timeout=240) as response:
        for chunk in response.iter_bytes():
            data += chunk
            if count_frames(data) >= count:
                return


def create_and_pause(page, server, worker):
    """Create clips in the page until the worker is paused in the middle of decoding one.

    On busy cores, the worker may have decoded a clip before it is paused.
    """
    for _ in range(20):
        before = newest_video(server)["id"]
        page.get_by_label("Prompt", exact=True).fill("a red ball bounces on the grass")
        page.locator("[name=seconds]").fill("4")
        page.locator("[name=steps]").fill("1")
        page.get_by_role("button", name="Create clip").click()
        wait_until(lambda before=before: newest_video(server)["id"] != before)
        read_frames(server, newest_video(server)["id"], FRAMES_BEFORE_THE_FIRST_IS_SHOWN)
        pause(worker.pid, server.folder / "data" / DEFAULT_FILE)
        if newest_video(server)["stage"] == "decode":
            return
        worker.resume()
        wait_until(lambda: newest_video(server)["status"] == "completed")
    raise AssertionError("the worker was never paused while it decoded")


def test_a_flipbook_clip_is_shown_in_the_console_while_it_is_decoded(page, tmp_path):
    # The worker is paused in the middle of decoding, so that the page has all the time it needs.
    settings = {
        "FILMGATE_ADMISSION__MODELS_FILE": write_cards(tmp_path, side=128),
        "FILMGATE_QUEUE__LEASE_SECONDS": "600",
    }
    server = ServerProcess(tmp_path, "--open", model="flipbook", **settings)
    try:
        page.goto(server.url)
        page.get_by_text("More settings").click()
        worker = wait_until(server.worker)
        create_and_pause(page, server, worker)
        card = page.locator("article").first
        wait_until(lambda: page.evaluate(SHOWN_WIDTH, "live") == 128)
        assert card.get_attribute("data-status") == "in_progress"
        worker.resume()
        # The stored clip replaces the stream, plays and seeks.
        wait_until(lambda: page.evaluate(SHOWN_WIDTH, "stored") == 128)
        assert card.get_attribute("data-status") == "completed"
        page.evaluate("document.querySelector('video').currentTime = 3")
        wait_until(
            lambda: page.evaluate("(v => !v.seeking && v.currentTime >= 3)(document.querySelector('video'))")
        )
        assert page.evaluate("document.querySelector('video').error") is None
        drain_from_the_page(page, server)
    finally:
        server.stop()


def drain_from_the_page(page, server):
    """The only worker, a real process, is drained on the page Queue and then renders nothing."""
    page.get_by_role("link", name="Queue").click()
    drain = page.get_by_role("button", name="Drain")
    drain.click()
    drain.click()
    expect(page.get_by_text("No worker is alive.")).to_be_visible()
    assert "an operator drains this worker" in server.log.read_text()
    assert server.worker() is not None, "a drained worker stays until it is stopped"
    waiting = page.evaluate(CREATE, {"prompt": "a red ball", "seconds": "1"})["id"]
    expect(page.locator("td", has_text=waiting[:14])).to_be_visible()
    assert page.evaluate(STATUS, waiting) == "queued"
