"""Language models: caches exact per architecture, latencies in order, verdicts that name the miss."""

import pytest

from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.serving import LlmAsk
from filmgate.planner.llm.step_time import Serving, decode_step, kv_bytes, read_bytes, weight_bytes
from filmgate.planner.video.memory import GIB

# bf16 cache of one sequence of 8192 tokens, GB: grouped, latent, half of the layers windowed
CACHES = [
    ("llama-3.1-8b", 1.07),
    ("llama-3.3-70b", 2.68),
    ("qwen3-32b", 2.15),
    ("qwen3-30b-a3b", 0.81),
    ("deepseek-v3", 0.58),
]


@pytest.mark.parametrize(("name", "gigabytes"), CACHES)
def test_the_cache_is_exact_per_architecture(catalog, name, gigabytes):
    assert kv_bytes(catalog.llm(name), 8192) / 1e9 == pytest.approx(gigabytes, abs=0.006)


def test_a_windowed_layer_stops_growing_at_its_window(catalog):
    model = catalog.llm("gpt-oss-20b")
    full_layer = 2 * 8 * 64 * 2
    assert kv_bytes(model, 8192) == 12 * full_layer * 8192 + 12 * full_layer * 128
    assert kv_bytes(model, 8192, "fp8") == kv_bytes(model, 8192) / 2


def test_a_mixture_reads_few_experts_alone_and_nearly_all_in_a_crowd(catalog):
    model = catalog.llm("qwen3-30b-a3b")
    whole = weight_bytes(model, "bf16")
    assert read_bytes(model, "bf16", 1) == pytest.approx(2 * model.active_params, rel=0.01)
    assert read_bytes(model, "bf16", 256) > 0.99 * whole


def test_a_released_checkpoint_has_its_exact_size(catalog):
    assert weight_bytes(catalog.llm("gpt-oss-120b"), "mxfp4") / GIB == pytest.approx(60.8, abs=0.05)


def test_a_bigger_batch_is_slower_a_token_and_faster_in_all(catalog, constants):
    serving = Serving(catalog.llm("llama-3.1-8b"), catalog.gpu("H100"), 1, "fp8", "bf16", "vllm")
    times = [decode_step(serving, batch, 2048, constants).seconds for batch in (1, 8, 64, 256)]
    assert times == sorted(times)
    rates = [batch / t for batch, t in zip((1, 8, 64, 256), times, strict=True)]
    assert rates == sorted(rates)


def test_the_time_answer_gives_first_token_next_token_and_tokens_by_batch(catalog, calibration):
    ask = LlmAsk(catalog.llm("llama-3.3-70b"), "fp8", concurrency=16)
    tokens = plan_llm(ask, catalog, calibration).time.tokens
    assert tokens["first_token_ms"] > tokens["between_tokens_ms"] > 0
    assert [row["batch"] for row in tokens["by_batch"]][:3] == [1, 4, 8]


def test_a_latency_nothing_reaches_names_the_nearest_and_the_option(catalog, calibration):
    answer = plan_llm(LlmAsk(catalog.llm("llama-3.3-70b"), "fp8", tbt_ms=0.5), catalog, calibration)
    assert not answer.is_possible
    assert "--tbt-ms" in answer.verdict
    slow = plan_llm(LlmAsk(catalog.llm("llama-3.3-70b"), "fp8", ttft_ms=1), catalog, calibration)
    assert "--ttft-ms" in slow.verdict


def test_data_that_must_stay_elsewhere_is_refused(catalog, calibration):
    answer = plan_llm(LlmAsk(catalog.llm("llama-3.1-8b"), residency="uk"), catalog, calibration)
    assert "eu-west-2" in answer.verdict
    assert not answer.is_possible


def test_bare_gpus_can_be_compared(catalog, calibration):
    answer = plan_llm(LlmAsk(catalog.llm("llama-3.1-8b"), instances=("H100", "L40S")), catalog, calibration)
    assert {o.name for o in answer.options} == {"H100", "L40S"}


def test_a_paused_cache_is_worth_reading_back_where_that_is_quicker(catalog, calibration):
    answer = plan_llm(LlmAsk(catalog.llm("llama-3.3-70b"), "fp8"), catalog, calibration)
    note = answer.fleet["cache_on_nvme"]
    assert note["is_worth_it"] == (note["read_seconds"] < note["recompute_seconds"])


def test_a_model_nothing_holds_says_what_to_lower(catalog, calibration):
    ask = LlmAsk(catalog.llm("deepseek-v3"), "bf16", gpu=catalog.gpu("L4"))
    answer = plan_llm(ask, catalog, calibration)
    assert "Lower --precision" in answer.verdict
    assert answer.rejected[0].number > answer.rejected[0].limit
