"""Decisions: bill, pattern, latency, region and hardware of one plan agree with each other."""

from dataclasses import replace

import pytest

from filmgate.jobs import Size
from filmgate.planner.fleet.simulation import Operation, peak_arrivals, simulate
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape
from filmgate.planner.percentiles import percentile
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion


@pytest.fixture
def question(catalog):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    clip = clip_for(model, size=Size(832, 480), seconds=5, steps=50)
    return VideoQuestion(model, clip, clips_per_day=2000, slo_seconds=400)


@pytest.fixture
def plan(catalog, calibration):
    return lambda question: plan_video(question, catalog, calibration)


@pytest.mark.parametrize("residency", ["EU", "GDPR", None])
def test_a_provider_outside_the_jurisdiction_is_never_recommended(question, plan, residency):
    quiet = replace(question, clips_per_day=3, region="eu-central-1", residency=residency)
    answer = plan(quiet)
    assert answer.fleet.pattern == "queue with scale to zero"
    assert not [quote for quote in answer.cost.managed if quote.is_available]
    assert "not in EU" in next(quote for quote in answer.cost.managed if quote.state == "active").note


@pytest.mark.parametrize("shape", list(TrafficShape))
@pytest.mark.parametrize("slo", [250, 4000, None])
def test_the_bill_is_that_of_the_pattern(question, plan, catalog, shape, slo):
    answer = plan(replace(question, shape=shape, slo_seconds=slo))
    size, hourly = answer.fleet.size, answer.cost.usd_per_hour
    hours = 24 if shape is not TrafficShape.BUSINESS else 10
    quiet = size.warm_instances * (24 - hours)
    if slo == 250:  # less than a start
        assert answer.fleet.pattern == ("always warm" if hours == 24 else "warm in the busy hours")
        assert answer.cost.usd_per_day == pytest.approx((size.instances * hours + quiet) * hourly)
    else:
        assert answer.fleet.pattern.startswith("queue with")
        assert answer.cost.usd_per_day == pytest.approx(size.machine_hours * hourly)
        assert size.machine_hours < size.instances * hours
    assert answer.options[0].usd_per_day == answer.cost.usd_per_day


@pytest.mark.parametrize("shape", list(TrafficShape))
def test_scale_to_zero_wins_only_where_it_is_in_time_and_cheaper(question, plan, shape):
    """The same question without the feature costs more, or the target is too tight."""
    runtime = replace(question.runtime, can_scale_to_zero=False)
    for slo in (250, 900):
        rare = replace(question, shape=shape, clips_per_day=60, slo_seconds=slo, region="eu-central-1")
        scaled, warm = plan(rare), plan(replace(rare, runtime=runtime))
        assert not warm.fleet.size.is_scaled
        assert scaled.fleet.size.is_scaled == (slo == 900)
        assert scaled.fleet.size.worst_p95 <= slo
        assert scaled.cost.usd_per_day <= warm.cost.usd_per_day
        assert scaled.fleet.size.spare_instances >= 1


def test_tenants_on_separate_hardware_scale_to_zero_each_on_their_own(question, plan):
    rare = replace(question, clips_per_day=60, slo_seconds=900, region="eu-central-1")
    shared, apart = plan(rare), plan(replace(rare, tenants=5, tenancy=Tenancy.INSTANCE))
    assert apart.fleet.size.is_scaled
    assert apart.fleet.size.pools == apart.fleet.size.spare_instances == 5
    assert apart.cost.usd_per_day > shared.cost.usd_per_day


def test_nobody_commits_to_machines_that_scale_to_zero(question, plan):
    rare = replace(question, clips_per_day=20, slo_seconds=900, commit_discount=0.3, interruptible_share=0.5)
    answer = plan(replace(rare, region="eu-central-1"))
    (part,) = answer.cost.purchase
    assert (part.how, part.instances) == ("on demand", answer.fleet.size.instances)
    assert "Commit to nothing" in answer.cost.warnings[0]
    assert [way.name for way in answer.cost.ways_to_buy] == ["on demand"]


def test_the_night_needs_no_machine_if_one_can_be_started_in_time(question, plan):
    busy = replace(question, shape=TrafficShape.BUSINESS, commit_discount=0.6)
    for slo, is_warm in ((250, True), (4000, False)):
        size = plan(replace(busy, slo_seconds=slo)).fleet.size
        assert (size.warm_instances > 0) == is_warm


def test_a_discount_and_spot_change_the_bill_and_the_verdict(question, plan):
    full, committed = plan(question), plan(replace(question, commit_discount=0.4))
    spot = plan(replace(question, interruptible_share=0.5))
    assert committed.cost.usd_per_month == pytest.approx(full.cost.usd_per_month * 0.6)
    assert spot.cost.usd_per_month < full.cost.usd_per_month
    assert {part.how for part in spot.cost.purchase} == {"on demand", "spot"}
    assert f"${committed.cost.usd_per_month:,.0f} per month" in committed.verdict


def test_a_worker_compiles_wan_and_so_does_the_plan(question, plan, catalog):
    eager = plan(replace(question, mode="eager"))
    assert plan(question).time.seconds_per_clip < eager.time.seconds_per_clip
    assert question.software().mode == "compiled"
    few = replace(question, clip=replace(question.clip, steps=3))
    assert few.software().mode == "compiled", "over the life of a worker it pays for short clips too"
    other = replace(question, model=catalog.video_model("cogvideox-2b"))
    assert other.software().mode == "eager"


@pytest.mark.parametrize("shape", list(TrafficShape))
def test_another_simulation_with_a_machine_lost_meets_the_target_at_the_upper_end(question, plan, shape):
    answer = plan(replace(question, shape=shape))
    size = answer.fleet.size
    left = size.replicas - size.replicas // size.instances
    arrivals = peak_arrivals(replace(question, shape=shape).traffic, 6000, seed=99)
    outcome = simulate(arrivals, answer.time.high, Operation(left, left))
    assert percentile(outcome.latencies, 0.95) <= 400
    assert size.latency_p95 <= size.worst_p95 <= 400


def test_no_clip_is_split_over_gpus_and_the_reason_says_so(question, plan, catalog):
    model = catalog.video_model("wan2.1-t2v-14b")
    hard = replace(question, model=model, clip=clip_for(model, seconds=5), slo_seconds=300)
    answer = plan(hard)
    assert not answer.options
    assert not answer.is_possible
    reason = next(r.reason for r in answer.rejected if r.name == "p6-b200.48xlarge")
    assert "which Filmgate does not run" in reason
    assert all(option.gpus_per_replica == 1 for option in plan(question).options)


@pytest.mark.parametrize("change", [{"precision": "fp8"}, {"adapters": 4}])
def test_what_the_runtime_does_not_do_is_never_recommended(question, plan, change):
    runtime = replace(question.runtime, can_serve_adapters=False)
    answer = plan(replace(question, runtime=runtime, **change))
    assert not answer.is_possible
    assert answer.verdict.startswith("Not with Filmgate: it does not")


def test_adapters_are_planned_because_workers_load_them(question, plan):
    assert plan(replace(question, adapters=4)).is_possible


def test_a_model_without_a_family_is_not_recommended(question, plan, catalog):
    model = catalog.video_model("mochi-1")
    answer = plan(VideoQuestion(model, clip_for(model)))
    assert not answer.is_possible
    assert "no family for MochiPipeline" in answer.verdict


def test_a_region_without_prices_is_planned_with_estimates_that_are_named(question, plan):
    answer = plan(replace(question, region="sa-east-1", residency="LGPD"))
    assert answer.is_possible
    assert "no price for sa-east-1" in answer.verdict
    assert any("estimate" in source for source in answer.sources)


def test_tenants_on_separate_hardware_are_machines_and_money(question, plan):
    shared = plan(replace(question, tenants=8))
    gpus = plan(replace(question, tenants=8, tenancy=Tenancy.GPU))
    machines = plan(replace(question, tenants=8, tenancy=Tenancy.INSTANCE))
    costs = [answer.cost.usd_per_month for answer in (shared, gpus, machines)]
    assert costs == sorted(costs)
    assert costs[0] < costs[2]
    assert machines.fleet.size.instances >= 16
    assert "8 tenants on separate hardware" in machines.verdict


def test_plan_b_names_a_machine_a_region_fewer_steps_and_a_provider(question, plan, catalog):
    answer = plan(question)
    second, region, steps, provider = answer.plan_b
    assert second.what != answer.options[0].name
    assert region.what.split(" in ")[1] in {"us-east-2", "us-west-1", "us-west-2"}
    assert steps.seconds < answer.time.seconds_per_clip
    assert "Luma" in provider.what
    assert all(way.usd_per_month for way in (second, region, steps, provider))


def test_plan_b_stays_in_the_jurisdiction(question, plan, catalog):
    region = plan(replace(question, region="eu-central-1", residency="EU")).plan_b[1]
    assert catalog.region(region.what.split(" in ")[1]).jurisdiction == "EU"


def test_the_blast_radius_of_a_machine_is_its_share_of_the_fleet(question, plan):
    answer = plan(replace(question, clips_per_day=20_000))
    blast, size = answer.fleet.blast_radius, answer.fleet.size
    assert blast.share_lost == pytest.approx(1 / size.instances)
    assert answer.time.seconds_per_clip <= blast.latency_p95 + 1e-9 <= 400
    assert blast.zones == 2


@pytest.mark.parametrize(
    ("looser", "tighter"),
    [
        ({"clips_per_day": 500}, {"clips_per_day": 900}),
        ({"slo_seconds": 900}, {"slo_seconds": 220}),
        ({"spare_machines": 0}, {"spare_machines": 2}),
    ],
)
def test_more_work_a_tighter_target_and_more_spares_never_cost_less(question, plan, looser, tighter):
    for shape in TrafficShape:
        base = replace(question, shape=shape)
        low, high = (plan(replace(base, **change)).cost.usd_per_day for change in (looser, tighter))
        assert low <= high


def test_dearer_prices_never_cost_less(question, catalog, calibration):
    dear = catalog.with_entries(
        prices=[replace(p, on_demand=p.on_demand * 1.3) for p in catalog.prices.values() if p.on_demand]
    )
    low, high = (plan_video(question, facts, calibration).cost.usd_per_day for facts in (catalog, dear))
    assert high == pytest.approx(1.3 * low)


@pytest.mark.parametrize("name", ["g7.2xlarge", "g4dn.2xlarge"])
def test_a_gpu_without_a_published_bf16_rate_is_planned_with_a_wide_interval(question, plan, name):
    answer = plan(replace(question, instances=(name,), slo_seconds=None))
    (option,) = answer.options
    assert option.high / option.low > 2
    assert answer.time.is_extrapolated


def test_recorded_arrivals_replace_the_volume(question, plan):
    times = tuple(float(60 * i) for i in range(300))
    answer = plan(replace(question, clips_per_day=None, arrivals=times))
    assert answer.fleet.arrivals.per_day == pytest.approx(300 / (299 * 60) * 86_400)
    assert answer.fleet.size.worst_p95 <= 400


def test_regions_are_listed_under_the_residency_rule_with_the_cost_of_the_fleet(question, plan):
    """The regions of the law come first."""
    answer = plan(replace(question, region="eu-central-1", residency="GDPR"))
    regions = answer.cost.regions
    assert [row.is_allowed for row in regions] == sorted((row.is_allowed for row in regions), reverse=True)
    assert all((row.jurisdiction == "EU") == row.is_allowed for row in regions)
    here = next(row for row in regions if row.region == "eu-central-1")
    assert here.usd_per_month == pytest.approx(answer.cost.usd_per_month)
