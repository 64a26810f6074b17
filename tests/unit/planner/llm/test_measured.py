"""Accelerators without a roofline are planned from runs that a user adds; T4 and G7 with wide intervals."""

import pytest

from filmgate.catalog.user_file import with_user_file
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.question import LlmQuestion

RUN = """
[[served_runs]]
instance = "inf2.xlarge"
model = "llama-3.1-8b"
precision = "bf16"
devices = 1
sequences = 4
prompt_tokens = 1024
answer_tokens = 256
first_token_ms = 420
between_tokens_ms = 55
source = "our bench, neuronx 2.23"
as_of = "2026-11-01"
"""


@pytest.fixture
def with_run(catalog, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(RUN)
    return with_user_file(catalog, file)


def question(catalog, **fields):
    return LlmQuestion(catalog.llm("llama-3.1-8b"), context=1280, concurrency=4, **fields)


def test_neuron_is_refused_with_advice_until_a_run_is_added(catalog, with_run, calibration):
    """inf2 beside g5, p4d and g4dn."""
    names = ("inf2.xlarge", "g5.2xlarge", "p4d.24xlarge", "g4dn.xlarge")
    before = plan_llm(question(catalog, instances=names), catalog, calibration)
    refused = next(one for one in before.rejected if one.name == "inf2.xlarge")
    assert "Neuron" in refused.reason
    assert "add a run that you measured" in refused.reason
    after = plan_llm(question(catalog, instances=names), with_run, calibration)
    assert "inf2.xlarge" in {option.name for option in after.options}
    assert "inf2.xlarge" not in {one.name for one in after.rejected}


def test_a_measured_machine_has_the_latencies_of_its_run_and_a_wide_interval(catalog, with_run, calibration):
    answer = plan_llm(question(catalog, instances=("inf2.xlarge",)), with_run, calibration)
    (option,) = answer.options
    assert option.seconds * 1e3 == pytest.approx(55, rel=0.02)
    assert option.high / option.low > 2
    assert answer.time.is_extrapolated
    assert any("our bench, neuronx 2.23" in source for source in answer.sources)


def test_a_measured_machine_is_found_in_any_spelling_and_priced_as_others_are(catalog, with_run, calibration):
    """The catalog has no price for sa-east-1, so the highest one of other regions is used."""
    asked = question(catalog, instances=("INF2.xlarge", "g5.2xlarge"), region="sa-east-1")
    answer = plan_llm(asked, with_run, calibration)
    prices = {option.name: option.usd_per_hour for option in answer.options}
    assert set(prices) == {"inf2.xlarge", "g5.2xlarge"}
    assert all(prices.values())


def test_another_batch_of_a_measured_machine_is_computed_from_its_run(with_run, catalog, calibration):
    alone = LlmQuestion(catalog.llm("llama-3.1-8b"), context=1280, instances=("inf2.xlarge",))
    answer = plan_llm(alone, with_run, calibration)
    assert answer.options[0].seconds * 1e3 < 55
    other = plan_llm(LlmQuestion(catalog.llm("qwen3-14b"), instances=("inf2.xlarge",)), with_run, calibration)
    assert not other.is_possible


@pytest.mark.parametrize(
    ("name", "model", "precision"),
    [("g4dn.xlarge", "llama-3.1-8b", "int8"), ("g7.8xlarge", "qwen3-14b", "fp8")],
)
def test_t4_and_g7_serve_models_with_a_wide_flagged_interval(catalog, calibration, name, model, precision):
    answer = plan_llm(
        LlmQuestion(catalog.llm(model), precision, context=1024, instances=(name,)), catalog, calibration
    )
    (option,) = answer.options
    assert option.high / option.low > 2
    assert "wider because the catalog has no published rate" in answer.time.note
