"""A server for tests of the console that can be stopped and started again, and tabs that stay clean."""

from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from filmgate.jobs import Failure, Reason
from filmgate.scheduling.base import AttemptFailure
from filmgate.store.base import UPLOAD_PART, ObjectName
from tests.server_process import free_port
from tests.service import MODELS, running, settings_for
from tests.waiting import LIMIT_SECONDS

ADAPTERS = """
[sketch]
model = "flipbook"
location = "/adapters/sketch.safetensors"

[own]
model = "flipbook"
location = "/adapters/own.safetensors"
tenant = "first"
"""

DATA = """([bytes, name, type = "image/png"]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], name, {type}));
    return data;
}"""
PASTE = """(clipboardData) => document.querySelector("textarea[name=prompt]")
    .dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true}))"""

# Only at the first load of the tab: it may sign out.
OPEN = """
if (!sessionStorage.getItem("test.opened")) {
    sessionStorage.setItem("test.opened", "yes");
    sessionStorage.setItem("filmgate.key", "%s");
}
"""


class Site:
    """A server that can be stopped and started again at the same address, and the keys of two tenants.

    Its Flipbook extends clips and has adapters.
    """

    def __init__(self, folder):
        self.folder, self.port, self.running = folder, free_port(), ExitStack()
        (folder / "adapters.toml").write_text(ADAPTERS)
        cards = MODELS.read_text().replace('["image", "remix"]', '["image", "remix", "extend"]')
        (folder / "models.toml").write_text(cards)
        self.start()
        self.url, self.key = self.service.url, self.service.key
        self.keys = {name: self.service.add_tenant(name) for name in ("first", "second")}

    def start(self):
        settings = settings_for(
            self.folder,
            api__port=self.port,
            models__adapters_file=str(self.folder / "adapters.toml"),
            admission__models_file=str(self.folder / "models.toml"),
        )
        self.service = self.running.enter_context(running(settings))

    def stop(self):
        self.running.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("console"))
    yield site
    site.stop()


@pytest.fixture
def hand(site):
    """A live worker that the test drives. The jobs of earlier tests are gone."""
    with site.service.client() as client:
        for video in client.get("/v1/videos?limit=100").json()["data"]:
            client.delete(f"/v1/videos/{video['id']}")
    hand = site.service.hand()
    hand.announce()
    return hand


@pytest.fixture
def opened(chromium, site):
    """Opens tabs; at the end, none may have an error, a cookie, or a request to another server."""
    contexts, errors, requests = [], [], []

    def open_tab(path="/#/", key=None, **options):
        context = chromium.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(LIMIT_SECONDS * 1e3)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
        page.on("request", lambda request: requests.append(request.url))
        page.add_init_script(OPEN % (key or site.key))
        page.goto(site.url + path)
        return page

    yield open_tab
    cookies = [cookie for context in contexts for cookie in context.cookies()]
    for context in contexts:
        context.close()
    assert errors == []
    assert cookies == []
    allowed = (site.url + "/", f"blob:{site.url}/", "data:")
    assert [url for url in requests if not url.startswith(allowed)] == []
    assert not any("fg_" in url for url in requests)


def _is_error(message):
    # The browser reports every response above 399 and every lost connection itself.
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def broken(message):
    """The failure of an attempt that is not repeated."""
    return AttemptFailure(Failure(Reason.INTERNAL, message), is_retryable=False)


def create(page, prompt):
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Create clip").click()
    card = page.locator("article").first
    expect(card).to_contain_text(prompt)
    return card


def image_of(site, job):
    name = ObjectName(job.tenant_id, job.id, UPLOAD_PART)
    return b"".join(site.service.services.store.read(name))


def press_twice(page, name, question):
    """Press a button that asks before it acts."""
    page.get_by_role("button", name=name).click()
    expect(page.get_by_text(question)).to_be_visible()
    page.get_by_role("button", name=name).click()
