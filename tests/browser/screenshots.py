"""Writes the screenshots of the console that the docs show: `make screenshots`.

A server with the shipped model renders every clip in them. Its history is moved into the past between two
rounds, so that the plots of an hour do not need an hour.
"""

import re
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from playwright.sync_api import sync_playwright

from filmgate.database import DEFAULT_FILE
from tests.browser.chromium import FLAGS, find_chromium
from tests.server_process import ServerProcess
from tests.waiting import wait_until

PROMPTS = [
    "a red ball bounces on the grass",
    "a yellow fish moves to the right in the sea",
    "a blue rocket rises in the night sky",
    "a green balloon sways at sunset",
    "a pink heart grows on a plain background",
    "a purple car moves to the right in the city",
]
VIEWS = {
    "": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "-dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}
# The pages of each view.
SHOTS = {
    "": ["create", "clips", "clip", "service", "tenants", "plan", "docs", "metrics", "queue"],
    "-dark": ["create", "clips", "service", "queue"],
    "-phone": ["create", "clips", "service", "tenants", "queue"],
}
CREATE = """async ([prompt, seconds, key]) => {
    const headers = {"Content-Type": "application/json", ...(key && {Authorization: `Bearer ${key}`})};
    const body = JSON.stringify({prompt, seconds, seed: 7, steps: 6});
    return (await (await fetch("/v1/videos", {method: "POST", headers, body})).json()).id;
}"""
# Adds a tenant, unless the data folder has it, and returns a key.
ADD_TENANT = """async (body) => {
    const headers = {"Content-Type": "application/json"};
    await fetch("/v1/tenants", {method: "POST", headers, body: JSON.stringify(body)});
    const rotate = {method: "POST", headers, body: JSON.stringify({overlap_seconds: 86400})};
    return (await (await fetch(`/v1/tenants/${body.id}/rotate`, rotate)).json()).api_key;
}"""
IS_PLAYING = "document.querySelector('video')?.currentTime > 0.3"
# The middle of the clip, so that every call takes the same picture.
STILL = """() => new Promise((resolve) => {
    const video = document.querySelector("video");
    video.pause();
    video.addEventListener("seeked", resolve, {once: true});
    video.currentTime = video.duration / 2;
})"""
DELETE = """async ([id, key]) => {
    const headers = key ? {Authorization: `Bearer ${key}`} : {};
    return (await fetch(`/v1/videos/${id}`, {method: "DELETE", headers})).status;
}"""
# The plot of the queue has something to show.
HAS_PLOT = "document.querySelector('.chart polyline')?.points.numberOfItems >= 6"
COUNT_PICTURES = "[...document.querySelectorAll('.picture img')].filter((image) => image.complete).length"
SETTINGS = {
    # The cards of the package, as users have them.
    "FILMGATE_ADMISSION__MODELS_FILE": "",
    "FILMGATE_API__USD_PER_GPU_HOUR": "2.5",
    # A deadline that a busy machine without a GPU meets.
    "FILMGATE_ADMISSION__SLO_SECONDS": "900",
    # A job whose worker is killed fails.
    "FILMGATE_QUEUE__MAX_ATTEMPTS": "1",
}
COUNT_WORKERS = "async () => (await (await fetch('/v1/workers')).json()).data.length"
# How many clips of `design` and `news` each round renders.
ROUNDS = [(1, 1), (1, 2), (2, 2), (0, 1), (1, 3), (1, 1)]
# In two steps: the key of a moved row may still belong to another one.
MOVE = [
    "UPDATE {} SET interval_at = -(interval_at - 300) WHERE width_seconds = 300",
    "UPDATE {} SET interval_at = -interval_at WHERE width_seconds = 300 AND interval_at < 0",
]
CONTENT = {"tenants": "td", "docs": ".operation", "metrics": ".metrics dt", "service": ".chart svg"}
STATUS = """async ([id, key]) => {
    const headers = key ? {Authorization: `Bearer ${key}`} : {};
    return (await (await fetch(`/v1/videos/${id}`, {headers})).json()).status;
}"""


def add_tenants(page):
    """The keys of two teams beside the tenant `local`."""
    teams = {"id": "design", "max_queued": 20}, {"id": "news", "weight": 2, "max_gpu_seconds_per_day": 36000}
    return [page.evaluate(ADD_TENANT, body) for body in teams]


def render(page, prompts, key=None):
    """Create clips and wait until they are ready."""
    ids = [page.evaluate(CREATE, [prompt, "1", key]) for prompt in prompts]
    for video in ids:
        wait_until(lambda video=video: page.evaluate(STATUS, [video, key]) == "completed", 600, interval=0.2)


def lose_worker(page, server, key):
    """Kill the worker while it renders: the job fails, and the server starts another worker."""
    job = [page.evaluate(CREATE, [PROMPTS[0], "4", key]), key]
    wait_until(lambda: page.evaluate(STATUS, job) == "in_progress", 300, interval=0.1)
    server.worker().kill()
    wait_until(lambda: page.evaluate(STATUS, job) == "failed", 300, interval=0.5)


def move_into_the_past(folder):
    """What happened in the current 5 minutes happened in those before them, and so on."""
    with closing(sqlite3.connect(folder / "data" / DEFAULT_FILE, timeout=60)) as database, database:
        for table in ("job_history", "device_history"):
            for statement in MOVE:
                database.execute(statement.format(table))


def fill(page, server, folder):
    """The clips of the gallery, and an hour of three tenants with a lost worker and a cancelled job."""
    page.goto(server.url)
    keys = add_tenants(page)
    wait_until(lambda: page.evaluate(COUNT_WORKERS), 300, interval=0.5)
    for number, counts in enumerate(ROUNDS):
        move_into_the_past(folder)
        for key, count in zip(keys, counts, strict=True):
            render(page, PROMPTS[:count], key)
        if number == 1:
            lose_worker(page, server, keys[0])
    cancel_jobs(page, [(page.evaluate(CREATE, [PROMPTS[0], "4", keys[1]]), keys[1])])
    move_into_the_past(folder)
    render(page, reversed(PROMPTS))


def take(page, url, name):
    """Open a page and wait until everything on it is shown."""
    page.goto(url)
    page.locator("h1").wait_for()
    if name == "plan":
        page.get_by_role("button", name="Compute plan").click()
        page.locator(".verdict").wait_for()
    if name in ("create", "clip"):
        wait_until(lambda: page.evaluate(IS_PLAYING), 300, interval=0.1)
        page.evaluate(STILL)
    if name in ("create", "clips"):
        # Pictures below the fold are not loaded: on a phone, Create shows none.
        is_wide = page.viewport_size["width"] > 1000
        least = {"create": 2 * is_wide, "clips": len(PROMPTS) if is_wide else 2}[name]
        wait_until(lambda: page.evaluate(COUNT_PICTURES) >= least, interval=0.1)
    if name == "create":
        page.locator(".estimate strong").wait_for()
    if name == "queue":
        wait_until(lambda: page.evaluate(HAS_PLOT), interval=0.5)
        page.get_by_role("button", name=re.compile("^Drain")).first.wait_for(timeout=300_000)
    if name == "service":
        page.get_by_label("Range").select_option("hour")
    if name in CONTENT:
        page.locator(CONTENT[name]).first.wait_for()
    page.mouse.move(700, 5)


def add_jobs(page, keys):
    """Jobs of three tenants that wait, until `cancel_jobs`: their ids and keys."""
    owners = [None, *keys] * 2
    return [
        (page.evaluate(CREATE, [prompt, "4", key]), key) for prompt, key in zip(PROMPTS, owners, strict=True)
    ]


def cancel_jobs(page, jobs):
    for job in reversed(jobs):
        # A running one is deleted when its worker has stopped, which can take longer than one request.
        wait_until(lambda job=job: page.evaluate(DELETE, list(job)) in (200, 404), 300, interval=0.5)


def shoot(context, url, names, target):
    """Take pages; `target` is a path with a place for the name."""
    with context.new_page() as page:
        page.goto(url)
        keys = add_tenants(page)
        clip = page.evaluate("async () => (await (await fetch('/v1/videos')).json()).data[0].id")
        addresses = {"create": "/#/", "clip": f"/#/clips/{clip}", "docs": "/docs", "metrics": "/docs/metrics"}
        for name in names:
            jobs = add_jobs(page, keys) if name == "queue" else []
            take(page, url + addresses.get(name, f"/#/{name}"), name)
            page.screenshot(path=str(target).format(name))
            cancel_jobs(page, jobs)


def main(folder, data):
    with sync_playwright() as playwright:
        server = ServerProcess(data, "--open", model="flipbook", **SETTINGS)
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        try:
            with browser.new_page() as page:
                fill(page, server, data)
            # The jobs of the queue are cancelled: the other pages come first in every view.
            for is_queue in (False, True):
                for view, options in VIEWS.items():
                    names = [name for name in SHOTS[view] if (name == "queue") is is_queue]
                    with browser.new_context(**options) as context:
                        shoot(context, server.url, names, folder / f"console-{{}}{view}.png")
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]), Path(temporary))
