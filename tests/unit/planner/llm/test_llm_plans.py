"""Language models: exact caches, latencies, and verdicts that name the missed limit."""

import random
import re
from dataclasses import replace

import pytest

from filmgate.catalog.gpus import GIB
from filmgate.planner.fleet.money import Terms
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.loaded import Load
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.step_time import Serving, decode_step, kv_bytes, read_bytes, weight_bytes
from filmgate.planner.report.tables import tables

# GB of bf16 cache for one sequence of 8192 tokens
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


def test_a_mixture_of_experts_reads_more_experts_with_more_tokens(catalog):
    model = catalog.llm("qwen3-30b-a3b")
    whole = weight_bytes(model, "bf16")
    assert read_bytes(model, "bf16", 1) == pytest.approx(2 * model.active_params, rel=0.01)
    assert read_bytes(model, "bf16", 256) > 0.99 * whole


def test_a_released_checkpoint_has_its_exact_size(catalog):
    assert weight_bytes(catalog.llm("gpt-oss-120b"), "mxfp4") / GIB == pytest.approx(60.8, abs=0.05)


def test_a_larger_batch_is_slower_per_token_and_faster_in_total(catalog, constants):
    serving = Serving(catalog.llm("llama-3.1-8b"), catalog.gpu("H100"), 1, "fp8", "bf16", "vllm")
    times = [decode_step(serving, batch, 2048, constants).seconds for batch in (1, 8, 64, 256)]
    assert times == sorted(times)
    rates = [batch / t for batch, t in zip((1, 8, 64, 256), times, strict=True)]
    assert rates == sorted(rates)


def test_the_time_answer_has_latencies_and_throughput(catalog, calibration):
    question = LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", concurrency=16)
    answer = plan_llm(question, catalog, calibration)
    tokens = answer.time.tokens
    assert tokens.first_token_ms > tokens.between_tokens_ms > 0
    request_ms = tokens.first_token_ms + 256 * tokens.between_tokens_ms
    sequences = 16 * answer.fleet.replicas_per_instance
    assert tokens.tokens_per_second == pytest.approx(sequences * 256 / request_ms * 1e3)


def test_the_prompt_of_the_only_sequence_delays_its_first_token_and_no_other(catalog, calibration):
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), context=8192, instances=("g6e.xlarge",))
    alone = plan_llm(question, catalog, calibration).time.tokens
    cached = plan_llm(replace(question, cached_tokens=7900), catalog, calibration).time.tokens
    assert cached.first_token_ms < alone.first_token_ms / 5
    assert cached.between_tokens_ms == alone.between_tokens_ms
    assert alone.between_tokens_ms == alone.between_tokens_ms_p50 == alone.between_tokens_ms_p99


def test_long_answers_are_planned_as_asked(catalog, calibration):
    """Most of the context may be the answer."""
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), context=8192, answer_tokens=8000)
    assert question.load(4) == Load(prompt=192, answer=8000, sequences=4)
    answer = plan_llm(replace(question, traffic=traffic_of(1e4)), catalog, calibration)
    cost = answer.cost
    assert cost.usd_per_day == pytest.approx(cost.usd_per_million_tokens * 1e4 * 8000 / 1e6)


def test_savings_are_computed_for_the_question_and_skip_what_it_has_already(catalog, calibration):
    """Cached tokens are not prefilled, and a smaller precision is offered once."""
    long = LlmQuestion(
        catalog.llm("llama-3.3-70b"),
        "fp8",
        "fp8",
        context=32_768,
        concurrency=16,
        cached_tokens=24_000,
        gpu=catalog.gpu("H200"),
    )
    answer = plan_llm(long, catalog, calibration)
    (batch,) = answer.cost.levers
    assert re.fullmatch(r"a batch of (\d+) instead of 16", batch.name)
    assert 0 < batch.saving < 1
    assert [lever.name[:13] for lever in answer.memory.levers] == ["half of the K"]
    small = LlmQuestion(
        catalog.llm("llama-3.1-8b"), concurrency=16, cached_tokens=4000, gpu=catalog.gpu("H200")
    )
    plain = plan_llm(small, catalog, calibration)
    assert [lever.name for lever in plain.cost.levers[:2]] == ["weights in fp8", "KV cache in fp8"]
    assert all(0 < lever.saving < 1 for lever in plain.cost.levers)
    weights, cache, nvme = plain.memory.levers
    assert plain.memory.peak_bytes - weights.peak_bytes == pytest.approx(small.model.params, rel=0.01)
    assert cache.peak_bytes == nvme.peak_bytes < plain.memory.peak_bytes


def test_too_many_requests_are_answered_with_their_rate(catalog, calibration):
    question = LlmQuestion(catalog.llm("llama-3.3-70b"), traffic=traffic_of(1e10), ttft_ms=3000)
    answer = plan_llm(question, catalog, calibration)
    assert not answer.is_possible
    assert answer.verdict.startswith("Too much for one fleet: 115,741 requests per second need more than")


def test_a_fraction_of_a_gpu_is_rejected(catalog, calibration):
    part = replace(catalog.instance("g6.xlarge"), name="acme.half", gpu_count=0.5)
    price = replace(catalog.price("g6.xlarge", "us-east-1"), instance="acme.half")
    wider = catalog.with_entries(instances=[part], prices=[price])
    answer = plan_llm(LlmQuestion(catalog.llm("qwen3-0.6b"), instances=("acme.half",)), wider, calibration)
    assert not answer.is_possible
    assert "has 0.5 of a GPU" in answer.verdict


def test_an_impossible_latency_is_answered_with_the_option_to_change(catalog, calibration):
    answer = plan_llm(LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", tbt_ms=0.5), catalog, calibration)
    assert not answer.is_possible
    assert "--tbt-ms" in answer.verdict
    slow = plan_llm(LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", ttft_ms=1), catalog, calibration)
    assert "--ttft-ms" in slow.verdict


def test_a_region_outside_the_residency_is_rejected_with_the_allowed_ones(catalog, calibration):
    answer = plan_llm(LlmQuestion(catalog.llm("llama-3.1-8b"), residency="UK"), catalog, calibration)
    assert "eu-west-2" in answer.verdict
    assert not answer.is_possible


def test_bare_gpus_can_be_compared(catalog, calibration):
    answer = plan_llm(
        LlmQuestion(catalog.llm("llama-3.1-8b"), instances=("H100", "L40S")), catalog, calibration
    )
    assert {o.name for o in answer.options} == {"H100", "L40S"}


def test_reading_a_paused_cache_is_worth_it_if_that_is_faster(catalog, calibration):
    answer = plan_llm(LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8"), catalog, calibration)
    cache = answer.fleet.cache_on_nvme
    assert cache.is_worth_it == (cache.read_seconds < cache.recompute_seconds)


def test_a_model_that_fits_nothing_is_answered_with_the_options_to_lower(catalog, calibration):
    question = LlmQuestion(catalog.llm("deepseek-v3"), "bf16", gpu=catalog.gpu("L4"))
    answer = plan_llm(question, catalog, calibration)
    assert "Lower --precision" in answer.verdict
    assert answer.rejected[0].number > answer.rejected[0].limit


def test_a_cached_prefix_makes_the_first_token_faster_and_the_cache_smaller(catalog, calibration):
    model, gpu = catalog.llm("llama-3.1-8b"), catalog.gpu("H100")
    cold, warm = (
        plan_llm(LlmQuestion(model, concurrency=16, gpu=gpu, cached_tokens=n), catalog, calibration)
        for n in (0, 6000)
    )
    assert warm.time.tokens.first_token_ms_p95 < 0.6 * cold.time.tokens.first_token_ms_p95
    assert warm.memory.peak_bytes < cold.memory.peak_bytes


def test_latencies_under_load_have_percentiles_in_order(catalog, calibration):
    """p99 of the first token and of the time between tokens."""
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), concurrency=8, gpu=catalog.gpu("H100"))
    tokens = plan_llm(question, catalog, calibration).time.tokens
    assert tokens.first_token_ms_p50 < tokens.first_token_ms_p95 <= tokens.first_token_ms_p99
    assert tokens.between_tokens_ms_p50 < tokens.between_tokens_ms_p99  # some steps also prefill a chunk
    alone = LlmQuestion(catalog.llm("llama-3.1-8b"), gpu=catalog.gpu("H100"))
    quiet = plan_llm(alone, catalog, calibration).time.tokens
    assert quiet.between_tokens_ms_p50 == quiet.between_tokens_ms_p99


def test_a_margin_on_the_whole_budget_can_be_asked_for(catalog, calibration):
    """The budget is (weights + cache + activations) x 1.2."""
    card = catalog.gpu("RTX-PRO-6000-BSE")
    question = LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", concurrency=4, gpu=card)
    assert plan_llm(question, catalog, calibration).is_possible
    careful = plan_llm(replace(question, safety_factor=1.0, budget_margin=1.2), catalog, calibration)
    assert not careful.is_possible
    assert careful.rejected[0].limit == pytest.approx(95.6 * 0.9 / 1.2, abs=0.5)


def test_the_managed_price_is_that_of_the_same_model_where_the_catalog_has_it(catalog, calibration):
    model = catalog.llm("llama-3.3-70b")
    answer = plan_llm(LlmQuestion(model, "fp8", concurrency=16), catalog, calibration)
    same, *others = answer.cost.managed
    assert same.is_same_model
    assert not any(quote.is_same_model for quote in others)
    assert same.usd_per_million_output_with_prompts == pytest.approx(0.72 * 8192 / 256, rel=0.01)
    assert "Llama 3.3 70B on Bedrock costs" in answer.verdict
    abroad = plan_llm(LlmQuestion(model, "fp8", region="eu-central-1"), catalog, calibration)
    assert "offered in US, not in EU" in abroad.verdict


def test_a_commitment_changes_the_bill_of_a_served_model(catalog, calibration):
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), concurrency=64, traffic=traffic_of(1e6))
    full = plan_llm(question, catalog, calibration).cost
    less = plan_llm(replace(question, terms=Terms(0.3)), catalog, calibration).cost
    assert less.usd_per_day == pytest.approx(0.7 * full.usd_per_day)
    assert {part.how for part in less.purchase} == {"committed"}


def test_every_answer_with_a_fleet_has_the_serving_patterns(catalog, calibration):
    """The workload, the AWS service and the way of Filmgate."""
    answer = plan_llm(LlmQuestion(catalog.llm("llama-3.1-8b")), catalog, calibration)
    patterns = answer.as_json()["serving_patterns"]
    assert len(patterns) == 7
    assert all(row["aws"] and row["filmgate"] for row in patterns)
    assert "Serving patterns" in {table.title for table in tables(answer)}


@pytest.mark.parametrize("traffic", [None, traffic_of(300_000, TrafficShape.BUSINESS)])
def test_the_chart_passes_through_the_cost_of_the_verdict(catalog, calibration, traffic):
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), concurrency=64, traffic=traffic)
    answer = plan_llm(question, catalog, calibration)
    own = answer.plots.cost[0].points
    asked = answer.plots.volume or answer.time.tokens.tokens_per_second * 86_400 / 1e6
    nearest = min(own, key=lambda point: abs(point[0] - asked))
    assert nearest[1] == pytest.approx(answer.cost.usd_per_million_tokens, rel=0.01)
    assert f"${answer.cost.usd_per_million_tokens:.2f} per million" in answer.verdict


def test_plan_b_names_another_machine_region_cache_and_the_provider(catalog, calibration):
    model = catalog.llm("llama-3.3-70b")
    question = LlmQuestion(model, "fp8", traffic=traffic_of(50_000), concurrency=64)
    answer = plan_llm(question, catalog, calibration)
    second, region, cache, provider = answer.plan_b
    assert catalog.instance(second.what).gpu != catalog.instance(answer.options[0].name).gpu
    assert catalog.region(region.what.split(" in ")[1]).jurisdiction == "US"
    assert cache.name == "KV cache in fp8"
    assert provider.what == "Llama 3.3 70B on Bedrock"
    assert all(way.usd_per_month for way in answer.plan_b)
    abroad = plan_llm(replace(question, region="eu-central-1", residency="EU"), catalog, calibration)
    assert abroad.plan_b[-1].what == "none"


@pytest.mark.parametrize("seed", range(5))
def test_more_requests_tighter_targets_and_higher_prices_never_cost_less(catalog, calibration, seed):
    draw = random.Random(seed)
    question = LlmQuestion(
        draw.choice([catalog.llm(name) for name in ("llama-3.1-8b", "qwen3-14b", "qwen3-32b")]),
        draw.choice(("bf16", "fp8")),
        context=draw.choice((2048, 8192)),
        concurrency=64,
        ttft_ms=draw.choice((1500, 4000)),
        traffic=traffic_of(10 ** draw.uniform(3, 6), draw.choice(list(TrafficShape))),
    )
    expensive = catalog.with_entries(
        prices=[replace(p, on_demand=p.on_demand * 1.2) for p in catalog.prices.values() if p.on_demand]
    )
    base, traffic = plan_llm(question, catalog, calibration), question.traffic
    more = traffic_of(traffic.per_day * 1.5, traffic.shape)
    harder = (
        plan_llm(replace(question, traffic=more), catalog, calibration),
        plan_llm(replace(question, ttft_ms=question.ttft_ms * 0.8), catalog, calibration),
        plan_llm(question, expensive, calibration),
    )
    assert base.is_possible
    assert all(not a.is_possible or a.cost.usd_per_day >= base.cost.usd_per_day * 0.9999 for a in harder)


def test_the_answer_says_that_a_replica_stays_on_one_machine(catalog, calibration):
    answer = plan_llm(LlmQuestion(catalog.llm("llama-3.1-8b")), catalog, calibration)
    assert any("at most 8 GPUs of one machine" in text for text in answer.assumptions)
    assert any("CPU memory" in text for text in answer.assumptions)


def test_an_answer_names_every_limit_that_the_closest_machine_misses(catalog, calibration):
    question = LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", ttft_ms=5, tbt_ms=1)
    verdict = plan_llm(question, catalog, calibration).verdict
    ttft, tbt = (int(re.search(rf"{name} (\d+)", verdict)[1]) for name in ("--ttft-ms", "--tbt-ms"))
    assert plan_llm(replace(question, ttft_ms=ttft, tbt_ms=tbt), catalog, calibration).is_possible
    assert not plan_llm(replace(question, ttft_ms=ttft - 1, tbt_ms=tbt), catalog, calibration).is_possible


def test_a_fleet_of_business_hours_is_scheduled_and_says_how_it_can_be_bought(catalog, calibration):
    question = LlmQuestion(
        catalog.llm("llama-3.1-8b"), concurrency=64, traffic=traffic_of(300_000, TrafficShape.BUSINESS)
    )
    answer = plan_llm(question, catalog, calibration)
    assert answer.fleet.size.warm_instances < answer.fleet.size.instances
    assert answer.fleet.pattern == "warm in the busy hours"
    assert {way.name for way in answer.cost.purchase_options} >= {
        "on demand",
        "spot where cheaper",
        "the bill",
    }
    steady = replace(question, traffic=traffic_of(300_000))
    assert plan_llm(steady, catalog, calibration).fleet.pattern == "always warm"


def test_a_region_without_prices_is_named_in_the_verdict(catalog, calibration):
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), region="sa-east-1", instances=("g6e.xlarge",))
    assert "no price for sa-east-1" in plan_llm(question, catalog, calibration).verdict


def test_every_managed_price_has_its_source_and_date(catalog, calibration):
    answer = plan_llm(LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8"), catalog, calibration)
    for quote in answer.cost.managed:
        assert [s for s in answer.sources if re.search(rf"^managed {quote.id}: .* \(20\d\d-", s)], quote.id


def test_the_verdict_calls_the_mean_time_between_tokens_a_mean(catalog, calibration):
    """Its p95 is higher: a step that also prefills a prompt takes longer."""
    question = LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", concurrency=16, tbt_ms=400)
    answer = plan_llm(question, catalog, calibration)
    tokens = answer.time.tokens
    assert tokens.between_tokens_ms_p95 > answer.time.high * 1e3
    mean = rf"The mean time between tokens is {tokens.between_tokens_ms:.3g} ms"
    assert re.search(rf"{mean}, and \d+ ms at the upper end of the interval \(limit 400 ms\)", answer.verdict)
    assert "between tokens on average" in answer.question


@pytest.mark.parametrize(
    ("name", "precision", "is_converted"),
    [("llama-3.3-70b", "fp8", True), ("llama-3.3-70b", "bf16", False), ("deepseek-v3", "fp8", False)],
)
def test_the_engine_is_told_to_convert_weights_that_were_not_released_in_fp8(
    catalog, calibration, name, precision, is_converted
):
    answer = plan_llm(LlmQuestion(catalog.llm(name), precision), catalog, calibration)
    assert ("--quantization fp8" in answer.fleet.engine_arguments) == is_converted
