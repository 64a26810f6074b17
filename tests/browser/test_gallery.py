"""The clips of the console: pages, filters, selection, pictures, audit records."""

import httpx
from playwright.sync_api import expect

from tests.browser.test_console import SMALL
from tests.browser.test_playback import make_fragments
from tests.images import png
from tests.waiting import wait_until

# Requests with this text in their URL are answered when the test says so, even if the page has aborted them.
HOLD = """(text) => {
    const { fetch } = window;
    window.fetch = async (url, options) => {
        if (!url.includes(text)) return fetch(url, options);
        const response = await fetch(url, { ...options, signal: undefined });
        await new Promise((resolve) => { window.release = resolve; });
        return response;
    };
}"""


def test_a_late_answer_to_an_earlier_filter_is_not_shown(site, opened):
    key = site.service.add_tenant("late")
    with site.service.client(key) as client:
        for number in range(3):
            video = client.post("/v1/videos", json={"prompt": f"clip {number}", **SMALL}).json()["id"]
            client.post(f"/v1/videos/{video}/cancel")
    page = opened("/#/clips", key)
    tiles = page.locator(".gallery-tile")
    expect(tiles).to_have_count(3)
    page.evaluate(HOLD, "status=failed")
    page.get_by_label("State").select_option("failed")
    wait_until(lambda: page.evaluate("() => Boolean(window.release)"))
    page.get_by_label("State").select_option("completed")
    expect(page.get_by_text("No clip matches.")).to_be_visible()
    page.evaluate("async () => { window.release(); await new Promise(requestAnimationFrame); }")
    expect(page.get_by_text("No clip matches.")).to_be_visible()
    expect(tiles).to_have_count(0)
    page.get_by_label("State").select_option("")
    expect(tiles).to_have_count(3)


def test_the_gallery_reads_page_after_page_and_belongs_to_one_tenant(site, opened):
    with site.service.client(site.keys["first"]) as client:
        for number in range(30):
            video = client.post("/v1/videos", json={"prompt": f"clip {number}", **SMALL}).json()["id"]
            client.post(f"/v1/videos/{video}/cancel")
    page = opened("/#/clips", site.keys["first"])
    expect(page.locator(".gallery-tile")).to_have_count(24)
    page.mouse.wheel(0, 10_000)
    expect(page.locator(".gallery-tile")).to_have_count(30)
    page.get_by_label("State").select_option("completed")
    expect(page.get_by_text("No clip matches.")).to_be_visible()
    page.get_by_label("State").select_option("failed")
    expect(page.locator(".gallery-tile").first).to_be_visible()
    page.get_by_label("Search prompts").fill("clip 29")
    expect(page.locator(".gallery-tile")).to_have_count(1)
    # The oldest clip is on the second page: the server finds it by the digest of its prompt.
    page.get_by_label("Search prompts").fill("clip 0")
    page.get_by_role("button", name="Find exact prompt").click()
    expect(page.locator(".gallery-tile")).to_have_count(1)
    expect(page.locator(".gallery-tile")).to_contain_text("clip 0")
    page.get_by_role("button", name="Show all clips").click()
    expect(page.locator(".gallery-tile").nth(23)).to_be_visible()
    page.locator(".tile-link").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tile-link").nth(1)).to_be_focused()
    with site.service.client(site.keys["first"]) as client:
        newest = client.get("/v1/videos?limit=1").json()["data"][0]["id"]
        digest = client.get(f"/v1/videos/{newest}/audit").json()["data"][0]["details"]["prompt_hmac"]
    page.get_by_label("Search prompts").fill(digest)
    expect(page.locator(".gallery-tile")).to_have_count(1)
    page.get_by_role("checkbox").check()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete 1 permanently").click()
    expect(page.locator(".gallery-tile")).to_have_count(0)
    other = opened("/#/clips", site.keys["second"])
    expect(other.get_by_text("There are no clips yet.")).to_be_visible()
    expect(other.get_by_role("link", name="Queue")).to_have_count(0)


def test_a_day_is_as_long_as_its_clock_and_may_be_typed(opened):
    page = opened("/#/clips", timezone_id="Europe/Berlin")
    day = page.get_by_label("Day")
    with page.expect_request("**created_from**") as asked:
        day.fill("2026-10-25")
    chosen = httpx.QueryParams(httpx.URL(asked.value.url).query)
    assert float(chosen["created_before"]) - float(chosen["created_from"]) == 25 * 3600
    with page.expect_response("**created_from**") as answered:
        day.fill("0002-10-25")
    assert answered.value.status == 200


def test_what_could_not_be_read_is_read_again(site, hand, opened):
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
    hand.make(b"".join(make_fragments(8)))
    page, refused, links = opened("/#/plan"), [], []
    page.on("request", lambda request: links.append(1) if "stream-link" in request.url else None)

    def refuse_once(route):
        url = route.request.url
        if url not in refused:
            refused.append(url)
            route.fulfill(status=503)
        elif "thumbnail" in url:
            route.fulfill(body=png(), content_type="image/png")
        else:
            route.continue_()

    page.clock.install()
    page.route("**variant=thumbnail", refuse_once)
    page.route("**/v1/models", refuse_once)
    page.route("**/stream-link", refuse_once)
    page.get_by_role("link", name="Clips").click()
    wait_until(lambda: page.clock.run_for(1000) or len(refused) == 2)
    wait_until(lambda: page.clock.run_for(1000) or page.locator(".picture img").count())
    expect(page.get_by_role("option", name="flipbook")).to_have_count(1)
    refused.clear()
    page.evaluate("(id) => { location.hash = `/clips/${id}`; }", video)
    wait_until(lambda: page.clock.run_for(1000) or page.get_by_role("button", name="Remix").count())
    wait_until(lambda: page.clock.run_for(1000) or page.locator("video[data-kind=stored]").count())
    assert sorted(url.rpartition("/")[2] for url in refused) == ["models", "stream-link"]
    links.clear()
    page.reload()
    wait_until(lambda: page.clock.run_for(1000) or page.locator("video[data-kind=stored]").count())
    assert len(links) == 1, "each one is in the audit log"


def test_a_clip_plays_only_under_the_pointer(site, hand, opened):
    with site.service.client() as client:
        client.post("/v1/videos", json={"prompt": "a red ball", **SMALL})
    hand.make(b"".join(make_fragments(8)))
    page, held = opened("/#/clips"), []
    page.route("**/stream-link", lambda route: held.append(route))  # noqa: PLW0108 - playwright needs a function
    page.locator(".picture").hover()
    wait_until(lambda: page.evaluate("true") and held)
    page.mouse.move(1, 1)
    with page.expect_response("**/stream-link"):
        held.pop().continue_()
    # The page has the link when it has the answer to a later request, and draws in the next frame.
    page.evaluate("async () => { await fetch('/healthz'); await new Promise(requestAnimationFrame); }")
    expect(page.locator(".picture video")).to_have_count(0)
    page.unroute("**/stream-link")
    page.locator(".picture").hover()
    expect(page.locator(".picture video")).to_have_count(1)
    page.mouse.move(1, 1)
    expect(page.locator(".picture video")).to_have_count(0)


def test_an_audit_record_that_was_changed_in_the_database_is_shown(site, opened):
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
        client.post(f"/v1/videos/{video}/cancel")
        shown = client.get(f"/v1/videos/{video}/audit").json()
    shown["data"][0] |= {"details": "{not JSON", "at": None}
    page = opened("/#/plan")
    page.route("**/audit", lambda route: route.fulfill(json=shown))
    page.evaluate("(id) => { location.hash = `/clips/${id}`; }", video)
    page.locator(".audit summary").first.click()
    expect(page.locator(".audit dd").first).to_have_text("{not JSON")
    expect(page.locator(".audit summary").first).to_have_text("created ")
