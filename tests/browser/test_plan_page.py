"""The page of a plan in a real Chromium: nothing is cut off on a screen of 1280 pixels or on paper."""

from datetime import date

import pytest

from filmgate.catalog.loader import load_calibration, load_catalog
from filmgate.planner.fit import plan_fit
from filmgate.planner.fleet.traffic import traffic_of
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.report.page import to_page
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion

A4_PIXELS = 718  # 190 mm at 96 pixels per inch
CUT_OFF = """() => [document.documentElement, ...document.querySelectorAll("table, figure, svg, .scroll")]
    .filter((element) => element.scrollWidth > element.clientWidth + 1
                      || element.getBoundingClientRect().right > window.innerWidth + 1)
    .map((element) => element.tagName + ": " + element.textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def pages():
    catalog, calibration = load_catalog(), load_calibration()
    model = catalog.video_model("wan2.1-t2v-1.3b")
    video = VideoQuestion(model, clip_for(model), traffic=traffic_of(500), slo_seconds=300)
    llm = LlmQuestion(catalog.llm("llama-3.1-8b"), concurrency=64, traffic=traffic_of(1e6))
    answers = (
        plan_video(video, catalog, calibration),
        plan_llm(llm, catalog, calibration),
        plan_fit(catalog, calibration, "us-east-1", instance="g7e.2xlarge"),
    )
    return [to_page(answer, date(2026, 11, 16)) for answer in answers]


@pytest.mark.parametrize(("media", "width"), [("screen", 1280), ("print", A4_PIXELS)])
def test_nothing_is_cut_off(page, pages, media, width):
    page.emulate_media(media=media)
    page.set_viewport_size({"width": width, "height": 800})
    for html in pages:
        page.set_content(html)
        assert page.evaluate(CUT_OFF) == []


def test_verdict_money_and_risks_are_on_the_first_screen(page, pages):
    page.set_viewport_size({"width": 1280, "height": 800})
    for html in pages[:2]:  # a list of models has no decision
        page.set_content(html)
        for title in ("Decision", "Risks"):
            box = page.get_by_role("heading", name=title, exact=True).locator("..").bounding_box()
            assert box["y"] + box["height"] <= 800
