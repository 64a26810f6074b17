"""Language-model fleets: enough replicas for the first token at p95, and no more, by a simulation."""

import heapq
import random
from dataclasses import replace

import pytest

from filmgate.planner.fleet.queueing import fewest_servers
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.arrivals import (
    BatchLimits,
    ReplicaPace,
    busiest_sequences,
    first_token_percentile,
    largest_batch,
    pace_of,
    size_llm_fleet,
)
from filmgate.planner.llm.loaded import Load
from filmgate.planner.llm.memory import llm_budget, usable_bytes
from filmgate.planner.llm.serving import LlmQuestion
from filmgate.planner.llm.step_time import Serving, steady_token_seconds
from filmgate.planner.report.tables import tables

PROMPT, ANSWER = 1536, 512
SHORT, LONG = ReplicaPace(16, 0.2, 0.02, 5.2), ReplicaPace(64, 0.05, 0.03, 15.05)


@pytest.fixture
def serving(catalog):
    return Serving(catalog.llm("llama-3.1-8b"), catalog.gpu("H100"), 1, "fp8", "bf16", "vllm")


def simulate(traffic, pace, replicas, requests=20_000, seed=3):
    """Sorted first-token times: the least loaded replica takes a request and prefills prompts in order."""
    draw = random.Random(seed)
    leaving = [[] for _ in range(replicas)]
    prefills_until = [0.0] * replicas
    now, times = 0.0, []
    while len(times) < requests:
        now += draw.expovariate(traffic.peak_rate / traffic.batch)
        for _ in range(int(traffic.batch)):
            for running in leaving:
                while running and running[0] <= now:
                    heapq.heappop(running)
            one = min(range(replicas), key=lambda n: (len(leaving[n]), prefills_until[n]))
            starts = now if len(leaving[one]) < pace.batch else heapq.heappop(leaving[one])
            first = max(starts, prefills_until[one]) + pace.first_token
            prefills_until[one] = first
            heapq.heappush(leaving[one], first + pace.request - pace.first_token)
            times.append(first - now)
    return sorted(times[requests // 10 :])


@pytest.mark.parametrize("shape", [TrafficShape.STEADY, TrafficShape.BURSTY])
@pytest.mark.parametrize("pace", [SHORT, LONG, ReplicaPace(8, 0.6, 0.04, 4.6)])
@pytest.mark.parametrize("ttft", [1.0, 3.0])
def test_a_fleet_meets_its_target_in_a_simulation(shape, pace, ttft):
    traffic = traffic_of(20 * 86_400, shape)
    fleet = size_llm_fleet(traffic, pace, ttft, 1, 8)
    times = simulate(traffic, pace, fleet.replicas)
    assert times[int(0.95 * len(times))] <= 1.1 * ttft


@pytest.mark.parametrize("pace", [SHORT, LONG])
def test_a_fleet_is_not_much_larger_than_the_simulation_requires(pace):
    traffic = traffic_of(20 * 86_400, TrafficShape.STEADY)
    fleet = size_llm_fleet(traffic, pace, 1.0, 1, 8)

    def is_enough(replicas):
        times = simulate(traffic, pace, replicas, requests=8_000)
        return times[int(0.95 * len(times))] <= 1.0

    floor = int(traffic.peak_rate * pace.replica_seconds)
    assert fleet.replicas <= 1.35 * fewest_servers(is_enough, floor) + 1


def test_the_batch_is_the_largest_that_memory_and_latency_allow(serving, constants):
    limits = BatchLimits(256, 0.02, 1.2)
    batch = largest_batch(serving, PROMPT, ANSWER, limits, constants)
    assert 1 < batch < 256
    assert steady_token_seconds(serving, batch, PROMPT, ANSWER, constants) <= 0.02
    assert steady_token_seconds(serving, batch + 1, PROMPT, ANSWER, constants) > 0.02
    roomy = largest_batch(serving, 16_000, ANSWER, replace(limits, tbt_seconds=None), constants)
    assert llm_budget(serving, 16_512, roomy, 1.2).peak_bytes <= usable_bytes(serving)
    assert llm_budget(serving, 16_512, roomy + 1, 1.2).peak_bytes > usable_bytes(serving)
    assert largest_batch(serving, PROMPT, ANSWER, replace(limits, max_sequences=3), constants) == 3
    assert largest_batch(serving, PROMPT, ANSWER, replace(limits, tbt_seconds=1e-9), constants) == 1


def test_more_replicas_never_slow_the_first_token(serving, constants):
    pace = pace_of(serving, Load(PROMPT, ANSWER, 32), constants)
    traffic = traffic_of(40 * 86_400, TrafficShape.BURSTY)
    times = [first_token_percentile(traffic, pace, n, 0.95) for n in range(1, 40)]
    assert times == sorted(times, reverse=True)
    assert times[0] == float("inf")
    assert times[-1] == pytest.approx(pace.first_token, rel=0.5)


def test_uneven_traffic_needs_more_replicas_and_keeps_fewer_warm():
    fleets = {shape: size_llm_fleet(traffic_of(1e6, shape), SHORT, 1.0, 1, 8) for shape in TrafficShape}
    assert fleets[TrafficShape.BURSTY].replicas > fleets[TrafficShape.STEADY].replicas
    assert fleets[TrafficShape.BUSINESS].replicas > 2 * fleets[TrafficShape.STEADY].replicas
    assert fleets[TrafficShape.BUSINESS].warm_replicas == 1
    assert fleets[TrafficShape.STEADY].warm_replicas == fleets[TrafficShape.STEADY].replicas
    assert all(fleet.replicas_p99 >= fleet.replicas for fleet in fleets.values())


def test_without_a_latency_target_a_fleet_still_has_spare_capacity():
    fleet = size_llm_fleet(traffic_of(20 * 86_400, TrafficShape.STEADY), SHORT, None, 1, 8)
    assert 0.7 < fleet.utilisation <= 0.85
    assert fleet.replicas_p99 is None


def test_no_fleet_exists_above_the_maximum_number_of_replicas():
    assert (
        size_llm_fleet(traffic_of(1e12, TrafficShape.STEADY), ReplicaPace(1, 0.2, 0.02, 5.2), 1.0, 1, 8)
        is None
    )


def question_for(catalog, **fields):
    return LlmQuestion(
        catalog.llm("llama-3.1-8b"), "fp8", context=2048, concurrency=256, ttft_ms=800, tbt_ms=40, **fields
    )


def test_an_answer_has_the_fleet_its_percentiles_and_its_cost(catalog, calibration):
    answer = plan_llm(question_for(catalog, requests_per_day=2e6), catalog, calibration)
    arrivals, cost, best = answer.fleet.arrivals, answer.cost, answer.options[0]
    assert arrivals.first_token_ms_p95 <= 800
    assert arrivals.between_tokens_ms <= 40
    assert arrivals.replicas == best.replicas >= 1
    assert arrivals.peak_requests_per_second == pytest.approx(2e6 / 86_400)
    assert cost.usd_per_day == pytest.approx(best.instances * best.usd_per_hour * 24)
    assert cost.usd_per_million_tokens == pytest.approx(cost.usd_per_day / (2e6 * 256 / 1e6))
    assert answer.as_json()["fleet"]["replicas"] == best.replicas
    assert "at p95" in answer.verdict
    printed = {row[0] for table in tables(answer) if table and table.title == "Fleet" for row in table.rows}
    assert {"replicas", "first token at p95", "sequences per replica"} <= printed


def test_options_are_ranked_by_the_cost_of_the_fleet(catalog, calibration):
    answer = plan_llm(question_for(catalog, requests_per_day=2e6), catalog, calibration)
    costs = [option.usd_per_day for option in answer.options if option.usd_per_day is not None]
    assert costs == sorted(costs)


def test_ten_times_the_requests_cost_less_than_ten_times_as_much(catalog, calibration):
    small, large = (
        plan_llm(question_for(catalog, requests_per_day=volume), catalog, calibration).cost.usd_per_day
        for volume in (2e5, 2e6)
    )
    assert small < large <= 10 * small


def test_the_time_between_tokens_is_that_of_the_sequences_that_arrivals_reach(catalog, calibration):
    few, many = (
        plan_llm(
            question_for(catalog, requests_per_day=volume, instances=("g6e.xlarge",)), catalog, calibration
        )
        for volume in (2000, 2e6)
    )
    assert few.fleet.arrivals.between_tokens_ms < many.fleet.arrivals.between_tokens_ms
    assert busiest_sequences(traffic_of(2000, TrafficShape.STEADY), LONG, 1) == 2
    assert busiest_sequences(traffic_of(1e9, TrafficShape.STEADY), LONG, 1) == LONG.batch
    assert "per million answer tokens" in few.verdict
