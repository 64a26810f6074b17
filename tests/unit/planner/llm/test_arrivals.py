"""Language-model fleets: enough replicas for the first token at p95, and no more, by a simulation."""

import heapq
import random
from dataclasses import replace

import pytest

from filmgate.planner.fleet.queueing import fewest_servers
from filmgate.planner.fleet.sizing import Layout
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.llm.answer import plan_llm
from filmgate.planner.llm.arrivals import (
    ReplicaPace,
    RequestDemand,
    busiest_sequences,
    fewest_by_formulas,
    first_token_percentile,
    largest_batch,
    pace_of,
)
from filmgate.planner.llm.loaded import Load
from filmgate.planner.llm.memory import llm_budget, usable_bytes
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.simulation import confirm, fewest_simulated, first_tokens, request_fleet
from filmgate.planner.llm.step_time import Serving, between_tokens_seconds
from filmgate.planner.percentiles import percentile
from filmgate.planner.report.tables import tables

PROMPT, ANSWER = 1536, 512
SHORT, LONG = ReplicaPace(16, 0.2, 0.02, 5.2), ReplicaPace(64, 0.05, 0.03, 15.05)
UPPER_END = 1.25


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


def demand(traffic, pace, ttft=1.0):
    return RequestDemand(traffic, pace, pace.slower(UPPER_END), ttft, ttft is not None)


def fleet_of(found, layout=Layout()):
    return request_fleet(found, layout, fewest_by_formulas(found), is_simulated=False)[0]


@pytest.mark.parametrize("shape", [TrafficShape.STEADY, TrafficShape.BURSTY])
@pytest.mark.parametrize("pace", [SHORT, LONG, ReplicaPace(8, 0.6, 0.04, 4.6)])
@pytest.mark.parametrize("ttft", [1.0, 3.0])
def test_a_fleet_meets_its_target_in_a_simulation_at_the_upper_end_with_a_machine_lost(shape, pace, ttft):
    traffic = traffic_of(20 * 86_400, shape)
    fleet = fleet_of(demand(traffic, pace, ttft))
    times = simulate(traffic, pace.slower(UPPER_END), fleet.replicas - 1)
    assert times[int(0.95 * len(times))] <= 1.1 * ttft


def test_a_fleet_has_a_spare_machine_if_a_latency_has_a_limit():
    layout, traffic = Layout(replicas_per_machine=4), traffic_of(20 * 86_400, TrafficShape.STEADY)
    for spare in (0, 1, 2):
        fleet = fleet_of(demand(traffic, SHORT), replace(layout, spare_machines=spare))
        assert fleet.spare_instances == spare
        assert fleet.instances == -(-fleet.needed_replicas // 4) + spare
        assert fleet.replicas == 4 * fleet.instances
    assert fleet_of(demand(traffic, SHORT, None), layout).spare_instances == 0
    assert fleet_of(replace(demand(traffic, SHORT, None), has_target=True), layout).spare_instances == 1


def test_the_expected_latency_is_that_of_all_machines_and_the_worst_that_of_the_needed_ones():
    found = demand(traffic_of(20 * 86_400, TrafficShape.BURSTY), SHORT)
    simulated = fewest_simulated(found, fewest_by_formulas(found))
    for fleet in (fleet_of(found), request_fleet(found, Layout(), simulated, is_simulated=True)[0]):
        assert fleet.latency_p95 < fleet.worst_p95 <= 1.0


def test_the_simulation_is_that_of_a_heap_for_each_replica():
    traffic = traffic_of(20 * 86_400, TrafficShape.STEADY)
    for replicas, pace in ((1, ReplicaPace(16, 0.02, 0.01, 0.6)), (8, SHORT), (6, LONG)):
        times = simulate(traffic, pace, replicas, requests=4000)
        found = first_tokens(traffic, pace, replicas, seeds=tuple(range(5)))
        assert percentile(found, 0.95) == pytest.approx(times[int(0.95 * len(times))], rel=0.25)


@pytest.mark.parametrize("pace", [SHORT, LONG])
def test_a_fleet_is_not_much_larger_than_the_simulation_requires(pace):
    traffic = traffic_of(20 * 86_400, TrafficShape.STEADY)
    fleet = fleet_of(demand(traffic, pace))

    def is_enough(replicas):
        times = simulate(traffic, pace.slower(UPPER_END), replicas, requests=8_000)
        return times[int(0.95 * len(times))] <= 1.0

    floor = int(traffic.peak_rate * pace.replica_seconds * UPPER_END)
    assert fleet.needed_replicas <= 1.35 * fewest_servers(is_enough, floor) + 1


def test_the_batch_is_the_largest_that_memory_and_latency_allow(serving, constants):
    most = Load(PROMPT, ANSWER, 256)
    batch = largest_batch(serving, most, 0.02, 1.2, constants)
    assert 1 < batch < 256
    assert between_tokens_seconds(serving, batch, PROMPT, ANSWER, constants) <= 0.02
    assert between_tokens_seconds(serving, batch + 1, PROMPT, ANSWER, constants) > 0.02
    roomy = largest_batch(serving, Load(16_000, ANSWER, 256), None, 1.2, constants)
    assert llm_budget(serving, 16_512, roomy, 1.2).peak_bytes <= usable_bytes(serving)
    assert llm_budget(serving, 16_512, roomy + 1, 1.2).peak_bytes > usable_bytes(serving)
    assert largest_batch(serving, replace(most, sequences=3), 0.02, 1.2, constants) == 3
    assert largest_batch(serving, most, 1e-9, 1.2, constants) == 1


def test_more_replicas_never_slow_the_first_token(serving, constants):
    pace = pace_of(serving, Load(PROMPT, ANSWER, 32), constants)
    traffic = traffic_of(40 * 86_400, TrafficShape.BURSTY)
    times = [first_token_percentile(traffic, pace, n, 0.95) for n in range(1, 40)]
    assert times == sorted(times, reverse=True)
    assert times[0] == float("inf")
    assert times[-1] == pytest.approx(pace.first_token, rel=0.5)


def test_uneven_traffic_needs_more_replicas_and_keeps_fewer_warm():
    demands = {shape: demand(traffic_of(1e6, shape), SHORT) for shape in TrafficShape}
    fleets = {shape: confirm(one, fleet_of(one)) for shape, one in demands.items()}
    assert fleets[TrafficShape.BURSTY].replicas > fleets[TrafficShape.STEADY].replicas
    assert fleets[TrafficShape.BUSINESS].replicas > 2 * fleets[TrafficShape.STEADY].replicas
    assert fleets[TrafficShape.BUSINESS].warm_replicas == 1
    assert fleets[TrafficShape.STEADY].warm_replicas == fleets[TrafficShape.STEADY].replicas
    assert all(fleet.replicas_p99 >= fleet.needed_replicas for fleet in fleets.values())


def test_without_a_latency_target_a_fleet_still_has_spare_capacity():
    found = demand(traffic_of(20 * 86_400, TrafficShape.STEADY), SHORT, None)
    fleet = fleet_of(found)
    assert 0.7 < fleet.utilisation * UPPER_END <= 0.85
    assert confirm(found, fleet).replicas_p99 is None


def test_no_fleet_exists_above_the_maximum_number_of_replicas():
    slow = ReplicaPace(1, 0.2, 0.02, 5.2)
    assert fewest_by_formulas(demand(traffic_of(1e12, TrafficShape.STEADY), slow)) is None


def question_for(catalog, **fields):
    return LlmQuestion(
        catalog.llm("llama-3.1-8b"), "fp8", context=2048, concurrency=256, ttft_ms=800, tbt_ms=40, **fields
    )


def test_an_answer_has_the_fleet_its_percentiles_and_its_cost(catalog, calibration):
    answer = plan_llm(question_for(catalog, traffic=traffic_of(2e6)), catalog, calibration)
    arrivals, size, cost, best = answer.fleet.arrivals, answer.fleet.size, answer.cost, answer.options[0]
    tokens = answer.time.tokens
    assert tokens.first_token_ms_p95 <= arrivals.worst_first_token_ms_p95 <= 800
    assert tokens.between_tokens_ms <= arrivals.worst_between_tokens_ms <= 40
    assert size.replicas == best.replicas >= 1
    assert arrivals.peak_requests_per_second == pytest.approx(2e6 / 86_400)
    assert cost.usd_per_day == pytest.approx(best.instances * best.usd_per_hour * 24)
    assert cost.usd_per_million_tokens == pytest.approx(cost.usd_per_day / (2e6 * 256 / 1e6))
    assert answer.as_json()["fleet"]["replicas"] == best.replicas
    assert "at p95" in answer.verdict
    printed = {row[0] for table in tables(answer) if table and table.title == "Fleet" for row in table.rows}
    assert {"replicas", "sequences per replica"} <= printed


def test_a_lost_machine_is_in_the_cost_and_in_the_decision(catalog, calibration):
    question = question_for(catalog, traffic=traffic_of(2e6), instances=("g6e.xlarge",))
    with_spare = plan_llm(question, catalog, calibration)
    alone = plan_llm(replace(question, spare_machines=0), catalog, calibration)
    hourly = with_spare.options[0].usd_per_hour
    assert with_spare.cost.usd_per_day == pytest.approx(alone.cost.usd_per_day + 24 * hourly)
    assert "(1 spare)" in with_spare.verdict
    assert "spare" not in alone.verdict
    blast = with_spare.fleet.blast_radius
    assert blast.share_lost == pytest.approx(1 / with_spare.fleet.size.instances)
    assert blast.latency_p95 <= with_spare.fleet.size.worst_p95
    decision = dict(tables(with_spare)[0].rows)
    assert decision["machines"].startswith(f"{with_spare.fleet.size.instances} x g6e.xlarge, 1 of them spare")
    assert "answers start again" in decision["if one machine is lost"]


def test_a_single_replica_meets_its_limits_at_the_upper_end(catalog, calibration):
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), concurrency=16, gpu=catalog.gpu("H100"))
    time = plan_llm(question, catalog, calibration).time
    for share, is_possible in ((0.99, False), (1.01, True)):
        tight = replace(question, tbt_ms=time.high * 1e3 * share)
        answer = plan_llm(tight, catalog, calibration)
        assert answer.is_possible == is_possible
    assert time.high > time.tokens.between_tokens_ms / 1e3


def test_options_are_ranked_by_the_cost_of_the_fleet(catalog, calibration):
    answer = plan_llm(question_for(catalog, traffic=traffic_of(2e6)), catalog, calibration)
    costs = [option.usd_per_day for option in answer.options if option.usd_per_day is not None]
    assert costs == sorted(costs)


def test_ten_times_the_requests_cost_less_than_ten_times_as_much(catalog, calibration):
    small, large = (
        plan_llm(question_for(catalog, traffic=traffic_of(volume)), catalog, calibration).cost.usd_per_day
        for volume in (2e5, 2e6)
    )
    assert small < large <= 10 * small


def test_the_time_between_tokens_is_that_of_the_sequences_that_arrivals_reach(catalog, calibration):
    few, many = (
        plan_llm(
            question_for(catalog, traffic=traffic_of(volume), instances=("g6e.xlarge",)), catalog, calibration
        )
        for volume in (2000, 2e6)
    )
    assert few.time.tokens.between_tokens_ms < many.time.tokens.between_tokens_ms
    assert busiest_sequences(traffic_of(2000, TrafficShape.STEADY), LONG, 1) == 2
    assert busiest_sequences(traffic_of(1e9, TrafficShape.STEADY), LONG, 1) == LONG.batch
    assert "per million answer tokens" in few.verdict


def test_a_machine_that_only_the_simulation_finds_too_small_is_rejected_with_the_reason(catalog, calibration):
    one = {"concurrency": 1, "ttft_ms": 2400, "instances": ("g6.xlarge",)}
    question = LlmQuestion(catalog.llm("llama-3.1-8b"), traffic=traffic_of(10_435_000), **one)
    answer = plan_llm(question, catalog, calibration)
    assert [(one.name, one.unit) for one in answer.rejected] == [("g6.xlarge", "replicas")]
    assert answer.verdict.startswith("Too much for one fleet: 121 requests per second")
