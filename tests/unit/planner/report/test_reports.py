"""The page is self-contained, the record is complete, and both show the whole answer."""

import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.planner.fit import Length, plan_fit
from filmgate.planner.fleet.traffic import traffic_of
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables
from filmgate.planner.rightsize import GpuMetrics, plan_rightsize
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion

TODAY = date(2026, 11, 15)


@pytest.fixture(scope="module")
def answers(catalog, calibration):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    llm = catalog.llm("llama-3.1-8b")
    week = GpuMetrics((0.2,) * 9, (8.0 * GIB,) * 9, (0.1,) * 9, (0.3,) * 9)
    question = VideoQuestion(model, clip_for(model), traffic=traffic_of(500), slo_seconds=150)
    return {
        "video": plan_video(question, catalog, calibration),
        "impossible": plan_video(
            VideoQuestion(model, clip_for(model), slo_seconds=0.1), catalog, calibration
        ),
        "no volume": plan_video(VideoQuestion(model, clip_for(model)), catalog, calibration),
        "llm": plan_llm(LlmQuestion(llm), catalog, calibration),
        "llm fleet": plan_llm(
            LlmQuestion(llm, concurrency=64, traffic=traffic_of(1e6), tbt_ms=100), catalog, calibration
        ),
        "rightsize": plan_rightsize(week, catalog, "us-east-1", instance="g7e.2xlarge"),
        "fit": plan_fit(catalog, calibration, "us-east-1", instance="g7e.2xlarge"),
    }


@pytest.mark.parametrize("slo", [100, 150, 200])
def test_verdict_table_and_plot_state_the_same_break_even(catalog, calibration, slo):
    """The first whole clip at which the fleet is cheaper, wherever it is shown."""
    model = catalog.video_model("wan2.1-t2v-1.3b")
    question = VideoQuestion(model, clip_for(model), traffic=traffic_of(500), slo_seconds=slo)
    answer = plan_video(question, catalog, calibration)
    (clips,) = re.findall(r"from (\d+) clips per day", answer.verdict)
    (table,) = (table for table in tables(answer) if table.title == "Managed APIs")
    assert f"{clips} clips per day" in [row[3] for row in table.rows]
    assert f": {clips} per day</text>" in to_page(answer, TODAY)


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
def test_the_page_is_well_formed_and_has_no_external_resources(answers, name):
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
    for title in ("Cost against clips per day", "Memory per GPU by stage", "Latency against load"):
        assert title in page
    assert not re.search(r'points="[^"]*nan', page)
    assert "SLO 150 s" in page


def height_of_slo(page):
    """The height of the line of the SLO, and the ticks of the axis beside it, in pixels."""
    figure = next(part for part in page.split("<figure>") if "Latency against load" in part)
    line = re.search(r'<line class="mark strong"[^>]* y1="([\d.]+)"', figure)
    ticks = re.findall(r'y1="([\d.]+)" y2="[\d.]+"/><text[^>]*>([\d.,]+) s</text>', figure)
    return line and float(line[1]), {float(value.replace(",", "")): float(at) for at, value in ticks}


def test_the_line_of_the_slo_is_at_its_height(answers):
    plots = answers["video"].plots
    for slo in (100.0, 150.0, 400.0):
        page = to_page(replace(answers["video"], plots=replace(plots, slo_seconds=slo)), TODAY)
        height, ticks = height_of_slo(page)
        (low, low_at), (high, high_at) = sorted(ticks.items())[1:3]
        assert height == pytest.approx(low_at + (slo - low) / (high - low) * (high_at - low_at), abs=0.2)
    far = to_page(replace(answers["video"], plots=replace(plots, slo_seconds=36_000.0)), TODAY)
    assert height_of_slo(far)[0] is None
    assert "SLO 36,000 s, above this plot" in far


def test_text_is_escaped(answers):
    page = to_page(replace(answers["video"], question="<script>alert(1)</script>"), TODAY)
    assert "<script>" not in page


@pytest.mark.parametrize("name", ["video", "impossible", "llm"])
def test_the_record_has_every_section_and_a_revisit_date(answers, name):
    text = to_record(answers[name], TODAY)
    for part in ("Context", "Forces", "Options", "Decision", "Consequences", "Risks", "Plan B", "Tenancy",
                 "Revisit", "Sources"):  # fmt: skip
        assert f"## {part}" in text
    assert answers[name].verdict in text
    assert "2027-02-13" in text


def test_every_rejection_is_in_the_record_and_the_page(answers):
    for rejected in answers["video"].rejected:
        assert rejected.name in to_record(answers["video"], TODAY)
        assert rejected.name in to_page(answers["video"], TODAY)


def test_a_record_claims_only_the_margins_that_its_fleet_has(answers):
    for name in ("video", "llm fleet"):
        answer = answers[name]
        size = replace(answer.fleet.size, spare_instances=0)
        alone = replace(answer, fleet=replace(answer.fleet, size=size))
        assert "and with the spare machines lost" in to_record(answer, TODAY)
        assert "and with the spare machines lost" not in to_record(alone, TODAY)
        assert "No machine is spare" in to_record(alone, TODAY)


def test_tables_are_rectangular(answers):
    for answer in answers.values():
        for table in tables(answer):
            assert all(len(row) == len(table.header) for row in table.rows), table.title


def test_cells_hold_text_for_people_and_no_python_values(answers):
    for answer in answers.values():
        cells = [cell for table in tables(answer) for row in table.rows for cell in row]
        names = ("settings.", "not with Filmgate: it cannot load")  # names of settings and classes have _
        cells = [cell for cell in cells if not cell.startswith(names)]
        assert not [cell for cell in cells if re.search(r"[{}\[\]_]|None|True|False", cell)]


def test_every_report_lists_the_values_of_the_chart_that_the_plan_decides(answers):
    """Not in JSON alone."""
    answer = answers["video"]
    chart = answer.fleet.deployment.chart
    found = {
        row[0]: row[1] for table in tables(answer) if table.title == "What to deploy" for row in table.rows
    }
    assert found["workers.NAME.minReplicas"] == str(chart.min_replicas)
    assert found["workers.NAME.maxReplicas"] == str(chart.max_replicas)
    assert chart.min_replicas <= chart.max_replicas
    for text in (to_record(answer, TODAY), to_page(answer, TODAY)):
        assert "workers.NAME.scaling.backlogSecondsPerWorker" in text


def test_the_fleet_table_shows_the_replicas_the_software_and_the_metrics(answers):
    def labels(name):
        return {row[0] for table in tables(answers[name]) if table.title == "Fleet" for row in table.rows}

    assert {"replicas", "warm replicas", "text encoder on NVMe (not with Filmgate)"} <= labels("video")
    assert {"video encoding on", "text encoder on NVMe (not with Filmgate)"} <= labels("no volume")
    assert "KV cache of a paused sequence on NVMe" in labels("llm")
    assert {"replicas", "sequences per replica"} <= labels("llm fleet")
    assert {"judgement", "SM active, p95", "DRAM active, p95"} <= labels("rightsize")


def test_fit_lists_every_model_once_each_in_a_row_of_its_own(answers, catalog):
    answer = answers["fit"]
    named = [o.name for o in answer.options] + [r.name for r in answer.rejected]
    assert sorted(named) == sorted([*catalog.video_models, *catalog.llms])
    found = {table.title: table for table in tables(answer)}
    videos, llms = found["Video models that fit"], found["Language models that fit"]
    assert "$/clip" in videos.header
    assert {"$/million tokens", "between tokens"} <= set(llms.header)
    rows = [row[1] for table in (videos, llms) for row in table.rows]
    assert rows == [option.name for option in answer.options]


def test_fit_ranks_models_that_filmgate_runs_before_the_others(answers, catalog):
    videos = [o for o in answers["fit"].options if o.name in catalog.video_models]
    notes = [bool(option.note) for option in videos]
    assert notes == sorted(notes)
    assert "not with Filmgate: it cannot load MochiPipeline" in {option.note for option in videos}
    assert f"Filmgate runs {notes.count(False)} of these" in answers["fit"].verdict


def test_a_length_that_some_models_cannot_render_rejects_only_those(catalog, calibration):
    found = plan_fit(catalog, calibration, "us-east-1", gpu=catalog.gpu("B200"), length=Length(seconds=400))
    reasons = {one.name: one.reason for one in found.rejected}
    assert "9601 frames of 1280x720 are too long" in reasons["hunyuanvideo"]
    assert "wan2.1-t2v-1.3b" in {option.name for option in found.options}
    assert "with clips of 400 s" in found.verdict


def test_fit_names_the_precision_that_a_model_does_not_fit_in(catalog, calibration):
    found = plan_fit(catalog, calibration, "us-east-1", gpu=catalog.gpu("L4"))
    reasons = {one.name: one.reason for one in found.rejected}
    assert reasons["gpt-oss-120b"].endswith("(weights in mxfp4)")
    assert reasons["deepseek-v3"].endswith("(weights in int4)")


def test_an_unsupported_machine_is_answered_with_the_reason(catalog, calibration):
    answer = plan_fit(catalog, calibration, "us-east-1", instance="inf2.xlarge")
    assert "Neuron" in answer.verdict


def test_verdict_money_and_risks_come_before_the_charts(answers):
    for name in ("video", "llm", "llm fleet"):
        page = to_page(answers[name], TODAY)
        places = [page.index(text) for text in ('class="verdict"', ">Decision<", ">Risks<", "<figure>")]
        assert places == sorted(places)


def test_machines_of_one_gpu_are_one_option_and_machines_with_one_reason_one_row(answers):
    answer = answers["video"]
    options = next(table for table in tables(answer) if table.title == "Options, best first")
    assert len(options.rows) == len({option.gpu for option in answer.options}) < len(answer.options)
    assert all(option.name in str(options.rows) for option in answer.options)
    rejected = next(table for table in tables(answer) if table.title == "Rejected")
    assert len(rejected.rows) == len({one.reason for one in answer.rejected})


def test_what_to_deploy_is_in_text_page_and_record(answers):
    """The Karpenter name, the driver and CUDA also where a volume is given."""
    for name in ("video", "llm fleet"):
        for text in (to_page(answers[name], TODAY), to_record(answers[name], TODAY)):
            for word in ("Karpenter GPU name", "driver", "CUDA", "NVENC"):
                assert word in text
    assert "filmgate deploy values" in to_record(answers["video"], TODAY)
    assert "--tensor-parallel-size" in to_record(answers["llm fleet"], TODAY)


def test_every_plot_has_two_named_axes(answers):
    for name in ("video", "llm fleet"):
        page = to_page(answers[name], TODAY)
        assert page.count("<figure>") == page.count('transform="rotate(-90') >= 3
        assert page.count('class="axis"') >= 2 * page.count("<figure>")


def test_the_record_of_metrics_claims_nothing_about_latency_and_names_its_doubts(answers):
    text = to_record(answers["rightsize"], TODAY)
    assert "Latency" not in text
    assert "Confidence: medium: only 9 samples." in text
    unsure = replace(answers["rightsize"].fleet, memory_p99_bytes=0.0, sm_p95=None, dram_p95=None)
    text = to_record(replace(answers["rightsize"], fleet=unsure), TODAY)
    assert "Confidence: low: memory is not recorded; SM and DRAM activity are not recorded;" in text


def test_the_record_rates_its_confidence(answers):
    assert "Confidence: high." in to_record(answers["video"], TODAY)
    assert "There is no decision" in to_record(answers["impossible"], TODAY).replace("there is", "There is")


def test_numbers_for_people_have_few_digits(answers):
    for answer in answers.values():
        cells = [cell for table in tables(answer) for row in table.rows for cell in row]
        cells = [cell for cell in cells if not cell.startswith("settings.")]  # names of settings have _
        assert not [cell for cell in cells if re.search(r"\d\.\d{6,}", cell)]


def test_every_source_has_a_date_and_every_kind_of_fact_has_a_source(answers):
    for name, answer in answers.items():
        assert not [source for source in answer.sources if not re.search(r"\(20\d\d-\d\d-\d\d\)$", source)]
        kinds = {source.partition(" ")[0] for source in answer.sources}
        assert {"GPU", "instance", "price"} <= kinds, name
        assert name == "rightsize" or {"model", "calibration:"} <= kinds, name
    prices = [source for source in answers["video"].sources if source.startswith("price ")]
    listed = {option.name for option in answers["video"].options}
    regions = {row.region for row in answers["video"].cost.regions}
    assert len(prices) == 1
    assert int(re.search(r"and (\d+) more", prices[0])[1]) + 4 >= len(listed) + len(regions) - 1
