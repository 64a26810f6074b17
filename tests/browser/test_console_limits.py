"""The console within its limits: a killed server, many clips, a tab left open, first paint, connections."""

import os
import signal
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from threading import Thread

import pytest
from playwright.sync_api import expect

from filmgate.jobs import Stage, TenantId
from tests.browser.console_site import create
from tests.browser.test_console import SMALL
from tests.browser.test_playback import make_fragments
from tests.server_process import ServerProcess, free_port
from tests.tickets import make_ticket
from tests.waiting import wait_until

SCROLL = """async (frames) => {
    for (let frame = 0; frame < frames; frame += 1) {
        scrollTo(0, (frame % 4) * 150);
        await new Promise(requestAnimationFrame);
    }
}"""
TO_THE_END = """() => {
    scrollTo(0, document.body.scrollHeight);
    return document.querySelectorAll(".gallery-tile").length;
}"""
ANIMATED = """() => document.getAnimations().flatMap(({effect}) => effect.getKeyframes())
    .flatMap((frame) => Object.keys(frame))
    .filter((name) => !["offset", "computedOffset", "easing", "composite"].includes(name))"""
# Every text that the page shows as its status, however short.
RECORD_STATUS = """() => {
    window.statuses = [];
    new MutationObserver(() => {
        const status = document.querySelector("[role=status]");
        if (status) window.statuses.push(status.textContent);
    }).observe(document.body, {childList: true, subtree: true});
}"""
SHOW = """(isShown) => {
    Object.defineProperty(document, "hidden", {value: !isShown, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def test_events_resume_after_the_server_was_killed(chromium, tmp_path):
    """After kill -9 and a start with the same data and address, the open page shows the end of its clip."""
    options = ("--open", "--no-worker", "--port", free_port())
    server = ServerProcess(tmp_path, *options)
    page = chromium.new_page()
    try:
        url = server.url
        page.goto(url)
        page.get_by_label("Prompt", exact=True).fill("a red ball")
        page.get_by_role("button", name="Create clip").click()
        card = page.locator("article").first
        expect(card).to_have_attribute("data-status", "queued")
        video = card.get_attribute("data-id")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server = ServerProcess(tmp_path, *options)
        assert server.url == url
        page.evaluate("(id) => fetch(`/v1/videos/${id}/cancel`, {method: 'POST'})", video)
        expect(card).to_contain_text("Cancelled")
    finally:
        page.close()
        server.stop()


def test_the_page_continues_after_a_restart_of_the_server(site, hand, opened):
    page = opened()
    card = create(page, "a yellow star")
    site.stop()
    site.start()
    hand = site.service.hand()
    hand.make(b"".join(make_fragments(8)))
    expect(card).to_have_attribute("data-status", "completed")


def test_a_clip_that_is_sent_again_after_a_lost_response_is_the_same_job(site, hand, opened):
    page = opened()
    create(page, "a red ball")
    page.route("**/v1/videos", lambda route: [route.fetch(), route.abort()])
    page.get_by_label("Prompt", exact=True).fill("a blue ball")
    press = page.get_by_role("button", name="Create clip").click
    press()
    problem = page.get_by_text("The server does not respond. Try again when it is back.")
    expect(problem).to_be_visible()
    page.unroute("**/v1/videos")
    press()
    expect(page.locator("article")).to_have_count(2)
    press()
    expect(page.locator("article")).to_have_count(3)
    with site.service.client() as client:
        prompts = [video["prompt"] for video in client.get("/v1/videos").json()["data"]]
    assert prompts == ["a blue ball", "a blue ball", "a red ball"]


def test_an_estimate_is_read_again_when_the_server_is_back(site, hand, opened):
    page = opened()
    page.clock.install()
    page.route("**/v1/videos/estimate", lambda route: route.abort())
    page.get_by_label("Prompt", exact=True).fill("a green ball")
    page.clock.run_for(1000)
    expect(page.get_by_text("The server does not respond.")).to_be_visible()
    page.unroute("**/v1/videos/estimate")
    page.clock.run_for(30_000)
    expect(page.locator(".estimate strong")).to_contain_text("Ready in about")


def test_a_stream_of_events_that_stays_silent_is_opened_again(site, hand, opened):
    """As after a laptop slept: nobody tells the page that its connection was cut."""
    page = opened()
    page.clock.install()
    asked = []
    page.on("request", lambda request: asked.append(1) if "/events" in request.url else None)
    card = create(page, "a silver bell")
    wait_until(lambda: page.evaluate("true") and asked)
    expect(card).to_have_attribute("data-status", "queued")
    page.clock.run_for(30_000)
    assert page.evaluate("1") == len(asked) == 1
    # Second by second: the page waits before it asks again.
    wait_until(lambda: page.clock.run_for(1000) or len(asked) == 2)
    hand.make(b"".join(make_fragments(8)))
    expect(card).to_have_attribute("data-status", "completed")


def test_a_tab_opens_at_most_two_streams_of_events(site, hand, opened):
    with site.service.client() as client:
        for number in range(5):
            client.post("/v1/videos", json={"prompt": f"ball {number}", **SMALL})
    started, ended = [], []
    page = opened("/#/plan")
    page.on("request", lambda request: started.append(request) if "/events" in request.url else None)
    for name in ("requestfinished", "requestfailed"):
        page.on(name, lambda request: ended.append(request) if "/events" in request.url else None)
    polled, single = [], []
    page.on("response", lambda found: polled.append(1) if "status=open" in found.url else None)
    page.on("request", lambda found: single.append(1) if found.url.partition("/v1/videos/")[2] else None)
    page.get_by_role("link", name="Clips").click()
    expect(page.locator(".gallery-tile")).to_have_count(5)
    # Three clips have no stream: when they were polled, the streams of the others are open.
    wait_until(lambda: page.evaluate("true") and polled)
    assert 1 <= len(started) - len(ended) <= 2
    assert len(single) == len(started), "one request polls all clips"
    # What waits does not move. What is drawn moves without being painted or laid out again.
    assert page.evaluate("document.getAnimations().length") == 0
    hand.take()
    hand.report(Stage.DENOISE)
    expect(page.get_by_text("Generating")).to_be_visible()
    assert set(wait_until(lambda: page.evaluate(ANIMATED))) == {"opacity"}
    hand.finish()


def test_a_hidden_tab_has_no_stream_of_events(site, hand, opened):
    """Three tabs with two streams each would take every connection that the browser opens to the server."""
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
    page, watchers = opened(f"/#/clips/{video}"), site.service.edge.watchers
    expect(page.locator(".timeline, .detail")).to_have_count(1)
    wait_until(lambda: watchers.total == page.evaluate("1"))
    page.evaluate(SHOW, False)
    wait_until(lambda: watchers.total == page.evaluate("0"))
    hand.make(b"".join(make_fragments(8)))
    page.evaluate(SHOW, True)
    expect(page.locator(".detail")).to_have_attribute("data-status", "completed")


def test_a_clip_that_was_deleted_while_its_tab_was_hidden_is_shown_as_deleted(site, hand, opened):
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
        page = opened(f"/#/clips/{video}")
        wait_until(lambda: site.service.edge.watchers.total == page.evaluate("1"))
        page.evaluate(SHOW, False)
        wait_until(lambda: site.service.edge.watchers.total == page.evaluate("0"))
        client.delete(f"/v1/videos/{video}")
    page.evaluate(SHOW, True)
    expect(page.get_by_text("The video was deleted.")).to_be_visible()


def test_the_timeline_of_an_open_page_has_each_stage_when_it_begins(site, hand, opened):
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
    page = opened(f"/#/clips/{video}")
    expect(page.locator(".detail")).to_have_attribute("data-status", "queued")
    hand.take()
    for stage, text in ((Stage.TEXT, "Encoding the prompt"), (Stage.DENOISE, "Generating")):
        hand.report(stage)
        expect(page.locator(".timeline")).to_contain_text(text)
    hand.finish(b"".join(make_fragments(8)))
    expect(page.locator(".timeline")).to_contain_text("Ready")


@pytest.mark.parametrize(("path", "content"), [("/#/queue", ".tile"), ("/#/clips", ".gallery-tile")])
def test_a_tab_asks_less_and_less_often_while_the_server_refuses(site, hand, opened, path, content):
    """By the clock of the page: of the 30 readings of a minute, a few are left. Then the page recovers."""
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
        client.post(f"/v1/videos/{video}/cancel")
    page = opened("/#/plan")
    page.clock.install()
    page.route("**/v1/*", lambda route: route.fulfill(status=503, json={"error": {"message": "busy"}}))
    asked = []
    address = {"/#/queue": "/v1/queue", "/#/clips": "/v1/videos?"}[path]
    page.on("request", lambda request: asked.append(1) if address in request.url else None)
    page.evaluate("(path) => { location.href = path; }", path)
    page.get_by_role("alert").wait_for()
    for _ in range(60):
        page.clock.run_for(1000)
        assert page.evaluate("0") == 0  # the answer, if there is one, has arrived
    assert 2 <= len(asked) <= 8
    page.unroute("**/v1/*")
    page.clock.run_for(30_000)
    page.locator(content).first.wait_for()
    expect(page.get_by_role("alert")).to_have_count(0)


class EmptyPage(BaseHTTPRequestHandler):
    """A server that does nothing but send an empty page."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><html lang=en><title>Empty</title><p>Empty</p></html>")

    def log_message(self, *_):
        return


class CpuClock:
    """The CPU seconds of a page's main thread. They depend little on what else runs on this machine."""

    def __init__(self, page):
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def read(self):
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def measure_first_paint(context, url):
    """The CPU seconds of a page until it has painted. No call of the API returns meanwhile."""
    page = context.new_page()
    page.route("**/v1/**", lambda _route: None)
    clock = CpuClock(page)
    page.goto(url)
    wait_until(lambda: page.evaluate(PAINT))
    seconds = clock.read()
    page.close()
    return seconds


def test_the_first_paint_takes_at_most_three_times_that_of_an_empty_page(chromium, site):
    context = chromium.new_context()
    context.add_init_script(f"sessionStorage.setItem('filmgate.key', '{site.key}')")
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        urls = (f"http://127.0.0.1:{server.server_port}/", site.url)
        rounds = [[measure_first_paint(context, url) for url in urls] for _ in range(7)]
        server.shutdown()
    context.close()
    empty, console = map(median, zip(*rounds, strict=True))
    assert console <= 3 * empty, rounds


def test_a_slow_network_delays_the_page_and_breaks_nothing(opened):
    """A third of a second to the server and 50 KB/s: the page says that it loads, then it works."""
    page = opened("/#/plan")
    session = page.context.new_cdp_session(page)
    slow = {"offline": False, "latency": 300, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
    session.send("Network.emulateNetworkConditions", slow)
    page.locator("select").first.wait_for()  # the plan has loaded
    page.evaluate(RECORD_STATUS)
    page.get_by_role("link", name="Clips").click()
    wait_until(lambda: "Loading…" in page.evaluate("statuses"))
    expect(page.get_by_role("status")).to_have_count(0)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_five_hundred_clips_scroll_at_sixty_frames_per_second(site, hand, opened):
    """A frame must not need more than its time. It needs about a ninth of it here."""
    queue = site.service.services.queue
    for number in range(500):
        job = queue.enqueue(make_ticket("first", prompt=f"clip {number}"))
        queue.cancel(TenantId("first"), job.id)
    page = opened("/#/clips", site.keys["first"])
    wait_until(lambda: page.evaluate(TO_THE_END) >= 500)
    expect(page.locator(".gallery-tile")).to_have_count(500)
    clock, frames = CpuClock(page), 80
    before = clock.read()
    page.evaluate(SCROLL, frames)
    assert (clock.read() - before) / frames <= 1 / 60


def test_a_tab_that_is_left_open_does_not_grow(site, hand, opened):
    """The page Queue, on a clock that the test turns: 12 minutes, or an hour by `make soak`.

    The page keeps its last 300 readings, those of 10 minutes: after them, nothing may grow.
    """
    page = opened("/#/plan")
    start = datetime(2030, 1, 1, tzinfo=UTC)
    page.clock.install(time=start)
    page.reload()
    page.get_by_role("link", name="Queue").click()
    page.locator(".tile").first.wait_for()
    # From here on, only the test turns it: a clock that also runs by itself may never reach its next minute.
    page.clock.pause_at(start + timedelta(hours=1))
    session = page.context.new_cdp_session(page)
    open_requests = set()

    def begin(request):
        open_requests.add(request)

    def end(request):
        open_requests.discard(request)

    page.on("request", begin)
    page.on("requestfinished", end)
    page.on("requestfailed", end)

    def run_for(minutes):
        # The page sends its next requests when it has the answers of the last ones.
        for _ in range(30 * minutes):
            page.clock.run_for(2000)
            wait_until(lambda: page.evaluate("0") == 0 and not open_requests, interval=0)

    def measure():
        session.send("HeapProfiler.collectGarbage")
        found = session.send("Runtime.getHeapUsage")["usedSize"], session.send("Memory.getDOMCounters")
        return found[0], found[1]["nodes"]

    run_for(10)
    early = measure()
    run_for(int(os.environ.get("FILMGATE_TEST_TAB_MINUTES", "12")) - 10)
    late = measure()
    assert late[0] < 1.2 * early[0]
    assert late[1] < 1.2 * early[1]
