"""A real Chromium."""

import os

import pytest

from tests.browser.chromium import FLAGS, find_chromium
from tests.browser.console_site import hand, opened, site  # noqa: F401 - fixtures
from tests.waiting import LIMIT_SECONDS


# Module scope: playwright keeps an event loop in this thread, which would disturb other tests.
@pytest.fixture(scope="module")
def chromium():
    path = find_chromium()
    if path is None:
        message = "chromium not found; run `apt-get install chromium` or set FILMGATE_TEST_CHROMIUM"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    from playwright.sync_api import expect, sync_playwright

    # An expectation waits for an event; the limit only ends a test that hangs.
    expect.set_options(timeout=LIMIT_SECONDS * 1e3)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    page = chromium.new_page()
    page.set_default_timeout(LIMIT_SECONDS * 1e3)
    yield page
    page.close()
