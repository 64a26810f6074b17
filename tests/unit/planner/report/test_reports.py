"""The page is self-contained, the record complete, and both say what the answer says."""

import re
from datetime import date
from html.parser import HTMLParser

import pytest

from filmgate.planner.fit import plan_fit
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.serving import LlmAsk
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.candidates import VideoAsk
from filmgate.planner.video.work import clip_for

TODAY = date(2026, 11, 15)


@pytest.fixture(scope="module")
def answers(catalog, calibration):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    ask = VideoAsk(model, clip_for(model), clips_per_day=500, slo_seconds=150)
    return {
        "video": plan_video(ask, catalog, calibration),
        "impossible": plan_video(VideoAsk(model, clip_for(model), slo_seconds=0.1), catalog, calibration),
        "llm": plan_llm(LlmAsk(catalog.llm("llama-3.1-8b")), catalog, calibration),
        "fit": plan_fit(catalog, calibration, "us-east-1", instance="g7e.2xlarge"),
    }


class Tags(HTMLParser):
    VOID = ("meta", "line", "rect", "polyline")

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["video", "impossible", "llm", "fit"])
def test_the_page_is_well_formed_and_fetches_nothing(answers, name):
    page = to_page(answers[name], TODAY)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags.seen}
    assert "http" not in re.sub(r"<li>.*?</li>", "", page)
    assert ("meta", {"name": "viewport", "content": "width=device-width,initial-scale=1"}) in tags.seen
    assert "@media print" in page


def test_the_video_page_draws_cost_memory_and_latency(answers):
    page = to_page(answers["video"], TODAY)
    for title in ("Cost against clips a day", "Memory of one GPU by stage", "Latency against load"):
        assert title in page
    assert not re.search(r'points="[^"]*nan', page)
    assert "SLO 150 s" in page


def test_words_from_outside_are_escaped(answers):
    from dataclasses import replace

    page = to_page(replace(answers["video"], question="<script>alert(1)</script>"), TODAY)
    assert "<script>" not in page


@pytest.mark.parametrize("name", ["video", "impossible", "llm"])
def test_the_record_has_every_part_and_a_date_to_look_again(answers, name):
    text = to_record(answers[name], TODAY)
    for part in ("Context", "Options", "Decision", "Consequences", "Risks", "Revisit", "Sources"):
        assert f"## {part}" in text
    assert answers[name].verdict in text
    assert "2027-02-13" in text


def test_every_rejection_is_in_every_form(answers):
    for rejected in answers["video"].rejected:
        assert rejected.name in to_record(answers["video"], TODAY)
        assert rejected.name in to_page(answers["video"], TODAY)


def test_tables_are_rectangular(answers):
    for answer in answers.values():
        for table in tables(answer):
            assert all(len(row) == len(table.header) for row in table.rows), table.title


def test_fit_lists_every_model_once(answers, catalog):
    answer = answers["fit"]
    named = [o.name for o in answer.options] + [r.name for r in answer.rejected]
    assert sorted(named) == sorted([*catalog.video_models, *catalog.llms])


def test_nothing_fits_a_machine_that_is_not_supported(catalog, calibration):
    answer = plan_fit(catalog, calibration, "us-east-1", instance="inf2.xlarge")
    assert "Neuron" in answer.verdict
