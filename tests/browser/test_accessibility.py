"""Every page by axe-core, on a desktop and on a dark phone with reduced motion."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.test_console import create

AXE = Path(__file__).parent / "axe.min.js"
# Only what is asserted leaves the page: the whole result has every rule and element that passed.
RUN_AXE = """axe.run(document, {resultTypes: ["violations"]}).then(({passes, violations}) => ({
    passed: passes.length,
    found: violations.map(({id, nodes}) => [id, nodes[0].html]),
}))"""
# The pages, and what each shows when its data has arrived.
READY = {
    "/#/": ".estimate strong",
    "/#/clips": ".gallery-tile",
    "/#/queue": ".tile",
    "/#/service": ".tile",
    "/#/tenants": "td",
    "/#/plan": "select",
    "/docs": ".operation",
    "/docs/metrics": ".metrics dt",
}


@pytest.mark.parametrize("view", ["desktop", "dark phone"])
def test_axe_finds_nothing(hand, opened, view):
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "reduced_motion": "reduce"}
    options = phone if "phone" in view else {}
    found = []
    page = opened(**options)
    video = create(page, "a red ball").get_attribute("data-id")
    for path, content in (READY | {f"/#/clips/{video}": ".code"}).items():
        page.goto(page.url.partition("/#")[0].removesuffix("/docs/metrics").removesuffix("/docs") + path)
        page.locator("h1").wait_for()
        page.locator(content).first.wait_for()
        page.evaluate(AXE.read_text())
        result = page.evaluate(RUN_AXE)
        assert result["passed"] > 0
        found += [(path, *finding) for finding in result["found"]]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert page.evaluate("document.getAnimations().length") == 0 or not options, "reduced motion"
    assert found == []
    if options:
        page.set_viewport_size({"width": 320, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "a small phone"
        expect(page.get_by_role("button", name="Sign out")).to_be_in_viewport(ratio=1)
    else:
        page.set_viewport_size({"width": 3840, "height": 2160})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "4K"
