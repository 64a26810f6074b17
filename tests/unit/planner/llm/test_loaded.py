"""The time to the first token under load."""

import pytest

from filmgate.planner.fleet.traffic import traffic_of
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.loaded import Load, loaded_first_token, prefill_seconds
from filmgate.planner.llm.memory import cache_capacity, engine_bytes, step_tokens
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.step_time import Serving, prefill_step


def test_an_idle_replica_takes_its_prefill_and_a_busy_one_longer(catalog, constants):
    serving = Serving(catalog.llm("llama-3.1-8b"), catalog.gpu("H100"), 1, "bf16", "bf16", "vllm")
    idle, *busy = (loaded_first_token(serving, Load(4000, 256, n), constants) for n in (1, 8, 32))
    assert idle.p95 == pytest.approx(prefill_step(serving, 4000, 1, constants).seconds, rel=0.01)
    assert idle.p95 < busy[0].p95 < busy[1].p95
    assert busy[1].p50 < busy[1].p95 < busy[1].p99


def test_a_target_is_checked_under_load(catalog, calibration):
    model, gpu = catalog.llm("llama-3.1-8b"), catalog.gpu("H100")
    alone = plan_llm(LlmQuestion(model, gpu=gpu, ttft_ms=400), catalog, calibration)
    crowd = plan_llm(LlmQuestion(model, gpu=gpu, ttft_ms=400, concurrency=24), catalog, calibration)
    assert alone.is_possible
    assert not crowd.is_possible
    assert "at p95" in crowd.rejected[0].reason


def test_a_looser_target_never_costs_more(catalog, calibration):
    model = catalog.llm("llama-3.1-8b")
    costs = [
        plan_llm(
            LlmQuestion(model, traffic=traffic_of(2e6), concurrency=64, ttft_ms=ttft), catalog, calibration
        )
        .options[0]
        .usd_per_day
        for ttft in (900, 2000, 8000)
    ]
    assert costs == sorted(costs, reverse=True)


def test_no_break_even_is_above_what_the_machine_can_serve(catalog, calibration):
    answer = plan_llm(LlmQuestion(catalog.llm("llama-3.3-70b"), "fp8", concurrency=8), catalog, calibration)
    capacity = answer.time.tokens.tokens_per_second * 86_400
    assert all((quote.break_even_tokens_per_day or 0) <= capacity for quote in answer.cost.managed)
    assert any(quote.break_even_tokens_per_day is None for quote in answer.cost.managed)


def test_a_long_prompt_is_prefilled_in_chunks_and_a_cached_prefix_is_not(catalog, constants):
    serving = Serving(catalog.llm("llama-3.1-8b"), catalog.gpu("L4"), 1, "bf16", "bf16", "vllm")
    assert step_tokens(serving.gpu) == 2048
    one, two = (prefill_seconds(serving, Load(n, 256, 16), constants) for n in (2000, 2100))
    assert two > one * 1.1  # a second step reads the weights again
    cached = loaded_first_token(serving, Load(4000, 256, 16, cached=3000), constants)
    assert cached.p95 < 0.5 * loaded_first_token(serving, Load(4000, 256, 16), constants).p95


def test_a_small_model_reserves_less_than_a_large_one(catalog):
    """A log of vLLM: 14.99 GiB of weights on 22.07 GiB leave 37,696 tokens, 9.2 sequences of 4096."""

    def reserved(name, gpu, gpus=1):
        return engine_bytes(Serving(catalog.llm(name), catalog.gpu(gpu), gpus, "bf16", "bf16", "vllm"))

    assert reserved("llama-3.1-8b", "L4") < 1.0e9 < reserved("llama-3.3-70b", "H200")
    small = Serving(catalog.llm("llama-3.1-8b"), catalog.gpu("A10G"), 1, "bf16", "bf16", "vllm")
    assert cache_capacity(small, 4096, 1.2) == pytest.approx(9.2, rel=0.1)
