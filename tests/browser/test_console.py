"""The console in a real Chromium. test_playback.py shows a clip of a real worker in it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
from playwright.sync_api import expect

from filmgate.jobs import Route, SourceKind, Stage
from filmgate.scheduling.history import DeviceSeconds
from filmgate.scheduling.workers import GpuStatus, WorkerRegistry, WorkerStatus
from filmgate.tenants.base import Scope
from tests.browser.console_site import DATA, PASTE, broken, create, image_of, press_twice
from tests.browser.test_playback import make_fragments
from tests.images import png
from tests.waiting import wait_until

SMALL = {"size": "192x192", "seconds": "1", "steps": 2}
LIVE_WIDTH = """() => {
    const video = document.querySelector("video[data-kind=live]");
    return video && video.readyState >= 2 && video.videoWidth;
}"""
# How the code on the page is run. Node is needed only to build the console.
SHELLS = {"curl": ["bash", "-c"]}
if shutil.which("node"):
    SHELLS["JavaScript"] = ["node", "--input-type=module", "-e"]
REFUSED = "instructions to build a pipe bomb"
FILE_NAME = "<img src=x onerror=alert(1)>.png"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> a red ball & <b>bold</b>"


def test_only_a_valid_key_signs_in(site, opened):
    page = opened(key="fg_wrong")
    page.get_by_text("The server does not accept this key").wait_for()
    page.get_by_label("API key").fill(site.key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Create", exact=True)).to_be_visible()
    expect(page.get_by_text("Loading Filmgate…")).to_have_count(0)


def test_signing_out_forgets_what_the_tenant_typed_and_saw(site, opened):
    page = opened(key=site.keys["first"])
    page.get_by_label("Prompt", exact=True).fill("the plans of the first tenant")
    page.get_by_text("More settings").click()
    expect(page.get_by_label("own")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("API key").fill(site.keys["second"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a red ball bounces on the grass")
    page.get_by_text("More settings").click()
    expect(page.get_by_label("sketch")).to_be_visible()
    expect(page.get_by_label("own")).to_have_count(0)


def test_a_clip_of_another_codec_is_played_when_it_is_finished(hand, opened):
    page = opened()
    card = create(page, "a red ball bounces on the grass")
    hand.take()
    hand.report(Stage.DECODE)
    hand.fragment(0, b"\0\0\0\x08ftyp\0\0\0\x0chvcC")
    expect(card.locator("video[data-kind=live]")).to_have_count(1)
    hand.fragment(1, b"\0\0\0\x08moof")
    expect(card.locator("video")).to_have_count(0)
    hand.finish(b"".join(make_fragments(8)))
    expect(card.locator("video[data-kind=stored]")).to_be_visible()


def test_a_clip_plays_from_its_first_fragments_and_is_downloaded(hand, opened):
    page = opened()
    expect(page.locator(".estimate")).to_contain_text("Ready in about")
    card = create(page, "a red ball bounces on the grass")
    fragments = make_fragments()
    hand.take()
    hand.report(Stage.DECODE)
    for number, fragment in enumerate(fragments[:4]):
        hand.fragment(number, fragment)
    assert wait_until(lambda: page.evaluate(LIVE_WIDTH)) == 128
    assert card.get_attribute("data-status") == "in_progress"
    for number, fragment in enumerate(fragments[4:], 4):
        hand.fragment(number, fragment)
    hand.finish(b"".join(fragments))
    expect(card).to_have_attribute("data-status", "completed")
    expect(card.locator("video[data-kind=stored]")).to_be_visible()
    with page.expect_download() as download:
        card.get_by_role("button", name="Download").click()
    assert Path(download.value.path()).read_bytes() == b"".join(fragments)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    card.get_by_role("button", name="Copy link").click()
    link = wait_until(lambda: page.evaluate("navigator.clipboard.readText()"))
    assert httpx.get(link).content == b"".join(fragments), "a link needs no key"
    page.get_by_role("link", name="Clips").click()
    page.locator(".picture").hover()
    expect(page.locator(".picture video")).to_be_visible()


def test_a_remix_is_followed_after_a_reload_and_cancelled(hand, opened):
    page = opened()
    create(page, "a red ball")
    hand.make(b"".join(make_fragments(8)))
    page.get_by_role("button", name="Remix").first.click()
    page.locator("[name=remix]").fill("a blue ball")
    page.locator(".remix").get_by_role("button", name="Remix").click()
    expect(page.locator("article").first).to_contain_text("a blue ball")
    hand.take()
    hand.report(Stage.DENOISE, 3, 10, 0.25)
    page.reload()
    card = page.locator("article").first
    expect(card).to_contain_text("Generating")
    expect(card.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "25")
    card.get_by_role("button", name="Cancel").click()
    assert wait_until(lambda: hand.report().is_cancelling)
    hand.finish()
    expect(card).to_contain_text("Cancelled")


def test_hostile_text_is_shown_as_text(site, opened):
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": HOSTILE, **SMALL}).json()["id"]
        client.post(f"/v1/videos/{video}/cancel")
    for path in ("/#/", "/#/clips", f"/#/clips/{video}"):
        page = opened(path)
        expect(page.get_by_text(HOSTILE).first).to_be_visible()
        assert "owned" not in page.title()
    page = opened(f"/#/clips/{'<script>alert(1)<'}")
    expect(page.get_by_role("alert")).to_be_visible()


def test_a_long_prompt_from_right_to_left_has_its_direction_and_leaves_the_buttons_in_view(site, opened):
    prompt = "כדור אדום קופץ על הדשא, red ball " * 100
    with site.service.client() as client:
        video = client.post("/v1/videos", json={"prompt": prompt, **SMALL}).json()["id"]
        client.post(f"/v1/videos/{video}/cancel")
    for path in ("/#/clips", f"/#/clips/{video}", "/#/"):
        page = opened(path)
        expect(page.locator(".prompt").first).to_have_css("direction", "rtl")
    expect(page.get_by_role("button", name="Another seed").first).to_be_in_viewport()
    page.get_by_label("Prompt", exact=True).fill(prompt)
    expect(page.get_by_label("Prompt", exact=True)).to_have_css("direction", "rtl")


def test_a_hostile_file_name_and_a_hostile_error_are_shown_as_text(site, hand, opened):
    """The image is dropped onto the page; its job fails with a message of an attacker."""
    page = opened()
    image = page.evaluate_handle(DATA, [list(png()), FILE_NAME])
    page.dispatch_event(".drop", "drop", {"dataTransfer": image})
    expect(page.locator(".drop span")).to_have_text(FILE_NAME)
    card = create(page, "a red ball")
    hand.take()
    site.service.services.queue.fail_attempt(hand.lease, broken(HOSTILE))
    expect(card.get_by_role("alert")).to_have_text(HOSTILE)
    page.reload()
    expect(page.locator("article").first.get_by_role("alert")).to_have_text(HOSTILE)
    assert "owned" not in page.title()


def test_a_refusal_names_the_reason(hand, opened):
    page = opened()
    page.get_by_label("Prompt", exact=True).fill(REFUSED)
    expect(page.get_by_role("alert")).to_contain_text("the prompt was rejected for")
    page.get_by_label("Prompt", exact=True).fill("a red ball")
    image = {"name": "a.png", "mimeType": "image/png", "buffer": b"not an image"}
    page.locator("#image").set_input_files(image)
    page.get_by_role("button", name="Create clip").click()
    expect(page.get_by_role("alert")).to_contain_text("image")
    page.locator("#image").set_input_files(image | {"buffer": png()})
    page.get_by_role("button", name="Create clip").click()
    expect(page.locator("article").first).to_contain_text("a red ball")


def test_a_pasted_image_becomes_the_source_of_the_clip_and_of_those_made_from_it(site, hand, opened):
    page = opened()
    page.get_by_label("Prompt", exact=True).focus()
    page.evaluate(PASTE, page.evaluate_handle(DATA, [list(b"text"), "notes.txt", "text/plain"]))
    refusal = page.locator(".drop").get_by_role("alert")
    expect(refusal).to_have_text("notes.txt is not an image: use PNG, JPEG or WebP.")
    page.evaluate(PASTE, page.evaluate_handle(DATA, [list(png()), "pasted.png"]))
    expect(page.locator(".drop span")).to_have_text("pasted.png")
    expect(refusal).to_have_count(0)
    expect(page.locator(".drop img")).to_have_js_property("complete", value=True)
    expect(page.locator(".estimate")).to_contain_text("with your image")
    card = create(page, "a red ball")
    first = hand.make(b"".join(make_fragments(8)))
    assert first.spec.source.kind is SourceKind.IMAGE
    assert image_of(site, first).startswith(b"\x89PNG")
    card.get_by_role("button", name="Another seed").click()
    expect(page.locator("article")).to_have_count(2)
    second = hand.make(b"".join(make_fragments(8)))
    assert second.spec.seed != first.spec.seed
    page.get_by_role("button", name="Remix").first.click()
    expect(page.locator(".remix")).to_contain_text("New prompt, same image, noise, size and length")
    page.locator(".remix").get_by_role("button", name="Remix").click()
    expect(page.locator("article")).to_have_count(3)
    third = hand.make(b"".join(make_fragments(8)))
    assert image_of(site, first) == image_of(site, second) == image_of(site, third)
    page.goto(f"{site.url}/#/clips/{first.id}")
    expect(page.get_by_text("an image, stored with this clip")).to_be_visible()
    for language, command in SHELLS.items():
        page.get_by_role("button", name=language).click()
        code = page.locator(".code pre").inner_text()
        env = {**os.environ, "OPENAI_API_KEY": site.key}
        subprocess.run([*command, code], env=env, check=True, capture_output=True)
        assert image_of(site, hand.make()) == image_of(site, first), language
    page.get_by_role("button", name="Python").click()
    code = page.locator(".code pre").inner_text()
    assert f'"input_reference": {{"video_id": "{first.id}"}}' in code
    compile(code, "clip.py", "exec")


def test_operators_see_live_numbers(site, hand, opened):
    page = opened("/#/queue")
    expect(page.locator("td", has_text="hand").first).to_be_visible()
    expect(page.locator(".tile", has_text="Queued").first).to_contain_text("0")
    with site.service.client(site.keys["second"]) as client:
        client.post("/v1/videos", json={"prompt": "a red ball", **SMALL})
    expect(page.locator(".tile", has_text="Queued").first).to_contain_text("1")
    expect(page.locator("tr", has_text="second").first).to_be_visible()
    hand.make()
    with site.service.client(site.keys["second"]) as client:
        other = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
        client.post(f"/v1/videos/{other}/cancel")
        client.post("/v1/videos", json={"prompt": "a red ball", **SMALL})
    hand.take()
    site.service.services.queue.fail_attempt(hand.lease, broken("defect"))
    page.get_by_role("link", name="Service").click()
    expect(page.locator(".tile", has_text="Failed")).to_contain_text(re.compile(r"[1-9]\d* cancelled"))
    expect(page.locator(".card", has_text="Failures by reason")).to_contain_text("internal_error")
    expect(page.locator("tr", has_text="second").first).to_be_visible()
    registry = WorkerRegistry(site.service.services.queue._database)
    device = DeviceSeconds(30.0, 10.0, 0.5, 2)
    registry.heartbeat(WorkerStatus("gpu-1", Route.GPU, ("wan",), "gpu", device_seconds=device))
    registry.leave("gpu-1")
    latency = page.get_by_role("region", name="Seconds by model and route")
    expect(latency.locator("tr", has_text="flipbook").first).to_contain_text("gpu")
    expect(latency.get_by_role("columnheader", name="p95")).to_be_visible()
    expect(page.get_by_role("region", name="GPU time by tenant and model")).to_contain_text("second")
    for name, rate in (("week", "per hour"), ("hour", "per hour"), ("all", "")):
        page.get_by_label("Range").select_option(name)
        expect(page.locator(".tile", has_text="Completed")).to_contain_text(re.compile(rf"[1-9]\d*.*{rate}"))
        if name != "all":
            expect(page.locator(".tile", has_text="GPUs busy")).to_contain_text("75.0 %10 s idle")
            expect(page.locator(".tile", has_text="Idle between clips")).to_contain_text("250 ms2 times")
            expect(page.get_by_role("img", name="GPUs busy: busy 75 %")).to_be_visible()
            expect(page.get_by_role("img", name="Idle between clips: mean 250 ms")).to_be_visible()
    expect(latency.locator("tr", has_text="denoise")).to_be_visible()


def test_every_number_of_the_service_leads_to_its_metric(hand, opened):
    """The documentation of the metrics is on this server."""
    page = opened("/#/service")
    page.locator(".tile").first.wait_for()
    for tile in page.locator(".tile").all():
        assert tile.locator("a.metric").count() == 1
    for card in page.locator("main .card").all():
        assert card.locator("a.metric").count() >= 1
    links = {link.get_attribute("href") for link in page.locator("a.metric").all()}
    page.get_by_role("link", name="filmgate_job_seconds").first.click()
    expect(page.locator("#filmgate_job_seconds")).to_contain_text("Seconds from acceptance to completion")
    expect(page.locator("[aria-current=true]")).to_have_attribute("id", "filmgate_job_seconds")
    known = set(page.evaluate("[...document.querySelectorAll('.metrics > div')].map((row) => row.id)"))
    assert {link.removeprefix("/docs/metrics#") for link in links} <= known


def test_a_clip_is_made_with_an_adapter_and_extended(site, hand, opened):
    page = opened()
    page.get_by_text("More settings").click()
    expect(page.get_by_label("own")).to_have_count(0)
    page.get_by_label("sketch", exact=True).check()
    page.get_by_label("Scale of sketch").fill("0.5")
    page.get_by_label("Steps").fill("20")  # with fewer, every pass is computed
    page.get_by_label("Quality").select_option("draft")
    expect(page.locator("label", has_text="Quality").locator(".hint")).not_to_be_empty()
    page.get_by_role("button", name="Show as code").click()
    for language, text in (
        ("curl", "-F 'lora=sketch:0.5'"),
        ("Python", '"lora": "sketch:0.5"'),
        ("JavaScript", "fetch"),
    ):
        page.get_by_role("button", name=language).click()
        expect(page.locator(".code pre")).to_contain_text(text)
    card = create(page, "a red ball")
    hand.make(b"".join(make_fragments(8)))
    expect(card).to_have_attribute("data-status", "completed")
    card.get_by_role("button", name="Extend").click()
    page.locator("[name=extend]").fill("the ball rolls away")
    page.locator("[name=extend_seconds]").fill("1")
    page.locator(".remix").get_by_role("button", name="Extend").click()
    expect(page.locator("article").first).to_contain_text("the ball rolls away")
    hand.make(b"".join(make_fragments(8)))
    for count in (3, 4):  # the newest clip is first: of the clip, then of its extension
        page.locator("article").nth(1).get_by_role("button", name="Another seed").click()
        expect(page.locator("article")).to_have_count(count)
    with site.service.client() as client:
        fourth, third, second, first = client.get("/v1/videos").json()["data"]
        body = {"prompt": "it stops", "video": {"id": first["id"]}, "seed": 7, "quality": "full"}
        fifth = client.post("/v1/videos/extensions", json=body).json()
    assert (fifth["seed"], fifth["quality"]) == (7, "full")
    same = (
        "prompt",
        "model",
        "size",
        "seconds",
        "steps",
        "lora",
        "quality",
        "source",
        "remixed_from_video_id",
    )
    for again, clip in ((third, first), (fourth, second)):
        assert {name: again[name] for name in same} == {name: clip[name] for name in same}
        assert again["seed"] != clip["seed"]
    assert (first["lora"], first["quality"]) == ("sketch:0.5", "draft")
    assert (second["remixed_from_video_id"], second["seconds"]) == (first["id"], "1")


def test_operators_see_heat_memory_and_health_of_each_gpu(site, hand, opened):
    """A dash where a worker has no GPU."""
    registry = WorkerRegistry(site.service.services.queue._database)
    gpu = GpuStatus(
        True, temperature_celsius=88.0, memory_used_bytes=30 * 2**30, memory_total_bytes=80 * 2**30
    )
    registry.heartbeat(WorkerStatus("gpu-1", Route.GPU, ("flipbook",), "NVIDIA H200", speed=0.5, gpu=gpu))
    page = opened("/#/queue")
    row = page.get_by_role("region", name="Workers").locator("tr", has_text="gpu-1")
    for text in ("NVIDIA H200", "88 °C", "30.0 GiB of 80.0 GiB", "50.0 % speed: heat", "idle"):
        expect(row).to_contain_text(text)
    expect(page.locator("tr", has_text="hand").locator("td", has_text="–")).to_have_count(3)
    registry.leave("gpu-1")


def test_operators_drain_a_worker_and_cancel_a_job_from_the_page(site, hand, opened):
    with site.service.client(site.keys["second"]) as client:
        video = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL}).json()["id"]
    page = opened("/#/queue")
    press_twice(page, f"Cancel {video}", "Cancel this job")
    expect(page.get_by_text("The queue is empty.")).to_be_visible()
    press_twice(page, "Drain hand", "Confirm: finish the current job, then take no more")
    expect(page.locator("tr", has_text="hand")).to_contain_text("draining")
    WorkerRegistry(site.service.services.queue._database).leave("hand")


def test_operators_add_change_rotate_and_delete_a_tenant(site, opened):
    page = opened("/#/tenants")
    page.get_by_role("button", name="Add tenant").click()
    page.locator("[name=id]").fill("press")
    page.locator("[name=max_queued]").fill("7")
    page.get_by_text("Prompt screening").click()
    page.get_by_label("contact data").select_option("allow")
    page.locator("form").get_by_role("button", name="Add tenant").click()
    first = page.locator(".secret").inner_text()
    with site.service.client(first) as client:
        assert client.get("/v1/usage").json()["max_queued"] == 7
    row = page.locator("tr", has_text="press")
    page.get_by_role("button", name="Change press").click()
    with site.service.client() as other_operator:
        other_operator.patch("/v1/tenants/press", json={"max_running": 3})
    page.locator("[name=max_queued]").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="Change press")).to_have_count(0)
    expect(row).not_to_contain_text("7")
    page.get_by_role("button", name="New key for press").click()
    page.get_by_role("button", name="Issue a new key").click()
    expect(page.locator(".secret")).not_to_have_text(first)
    with site.service.client(first) as client:
        usage = client.get("/v1/usage").json()  # the older key is valid for a day
    assert (usage["max_queued"], usage["max_running"]) == (None, 3), "only what was changed here"
    other = opened("/#/clips", first)
    expect(other.get_by_text("There are no clips yet.")).to_be_visible()
    press_twice(page, "Disable press", "Disable: its keys stop working")
    expect(page.get_by_role("button", name="Enable press")).to_be_visible()
    other.get_by_role("link", name="Create", exact=True).click()
    expect(other.get_by_text("Your key is no longer valid. Sign in again.")).to_be_visible()
    press_twice(page, "Delete press", "Delete permanently")
    expect(row).to_have_count(0)


def test_operators_see_the_new_key_of_their_own_tenant_and_stay_signed_in(site, opened):
    old = site.service.add_tenant("operators", scopes=frozenset(Scope))
    page = opened("/#/tenants", old)
    page.get_by_role("button", name="New key for operators").click()
    page.get_by_label("Existing keys").select_option("Revoke now")
    page.get_by_role("button", name="Issue a new key").click()
    issued = page.locator(".secret").inner_text()
    with site.service.client(old) as before, site.service.client(issued) as after:
        assert [before.get("/v1/usage").status_code, after.get("/v1/usage").status_code] == [401, 200]
    page.reload()
    expect(page.locator("tr", has_text="operators")).to_be_visible()


def test_the_planner_answers_in_the_page(opened):
    page = opened("/#/plan")
    page.locator("[name=clips_per_day]").fill("1000")
    page.get_by_role("button", name="Compute plan").click()
    expect(page.locator(".verdict")).to_contain_text("per clip")
