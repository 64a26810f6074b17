"""Writes the screenshots of the console that the docs show: `make screenshots`."""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.chromium import FLAGS, find_chromium
from tests.server_process import ServerProcess
from tests.waiting import wait_until

PROMPTS = [
    "a red ball bounces on the grass",
    "a yellow fish moves to the right in the sea",
    "a blue rocket rises in the night sky",
    "a green balloon sways at sunset",
    "an orange star spins in the night sky",
    "a white boat moves to the left on the sea",
    "a pink heart grows on a plain background",
    "a purple car moves to the right in the city",
]
PAGES = {
    "create": "/#/",
    "clips": "/#/clips",
    "queue": "/#/queue",
    "service": "/#/service",
    "plan": "/#/plan",
}
VIEWS = {
    "desktop": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}
CREATE = """async ([prompt, seconds]) => {
    const headers = {"Content-Type": "application/json"};
    const body = JSON.stringify({prompt, seconds, seed: 7});
    return (await (await fetch("/v1/videos", {method: "POST", headers, body})).json()).id;
}"""
STATUS = "async (id) => (await (await fetch(`/v1/videos/${id}`)).json()).status === 'completed'"


def fill(page, url):
    """Render some clips, and leave some in the queue."""
    page.goto(url)
    ids = [page.evaluate(CREATE, [prompt, "2"]) for prompt in reversed(PROMPTS)]
    wait_until(lambda: page.evaluate(STATUS, ids[-1]), 300, interval=0.5)
    return ids


def take(page, path, name, folder):
    page.goto(path)
    page.reload()
    page.wait_for_selector("h1")
    if name == "plan":
        page.get_by_role("button", name="Compute plan").click()
        page.wait_for_selector(".verdict")
    if name == "create":
        wait_until(lambda: page.evaluate("document.querySelector('video')?.currentTime > 0.6"), interval=0.1)
        page.wait_for_selector(".estimate strong")
    if name == "queue":
        page.wait_for_timeout(5000)
    page.wait_for_load_state("networkidle") if name in ("clips", "docs") else page.wait_for_timeout(600)
    page.screenshot(path=folder / f"console-{name}.png")


def main(folder):
    with tempfile.TemporaryDirectory() as data, sync_playwright() as playwright:
        server = ServerProcess(Path(data), "--open", model="flipbook", FILMGATE_API__USD_PER_GPU_HOUR="2.5")
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        try:
            clip = None
            for view, options in VIEWS.items():
                with browser.new_context(**options) as context, context.new_page() as page:
                    if clip is None:
                        clip = fill(page, server.url)[-1]
                    pages = PAGES | {"clip": f"/#/clips/{clip}", "docs": "/docs"}
                    for name, path in pages.items():
                        if name == "queue":
                            for _ in range(6):
                                page.evaluate(CREATE, [PROMPTS[0], "2"])
                        suffix = "" if view == "desktop" else f"-{view}"
                        take(page, server.url + path, name, _Suffixed(folder, suffix))
        finally:
            browser.close()
            server.stop()


class _Suffixed:
    """A folder whose files get a suffix before their extension."""

    def __init__(self, folder, suffix):
        self.folder, self.suffix = folder, suffix

    def __truediv__(self, name):
        stem, _, extension = name.rpartition(".")
        return self.folder / f"{stem}{self.suffix}.{extension}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
