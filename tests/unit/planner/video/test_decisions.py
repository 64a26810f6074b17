"""Decisions: bill, pattern, latency, region and hardware of one plan agree with each other."""

import re
from dataclasses import replace
from datetime import date

import pytest

from filmgate.jobs import Size
from filmgate.planner.fit import plan_fit
from filmgate.planner.fleet.money import Terms
from filmgate.planner.fleet.simulation import Operation, peak_arrivals, simulate
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape, recorded_traffic, traffic_of
from filmgate.planner.percentiles import percentile
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion


@pytest.fixture
def question(catalog):
    model = catalog.video_model("wan2.1-t2v-1.3b")
    clip = clip_for(model, size=Size(832, 480), seconds=5, steps=50)
    return VideoQuestion(model, clip, traffic=traffic_of(2000), slo_seconds=400)


@pytest.fixture
def plan(catalog, calibration):
    return lambda question: plan_video(question, catalog, calibration)


@pytest.mark.parametrize("residency", ["EU", None])
def test_a_provider_outside_the_jurisdiction_is_never_recommended(question, plan, residency):
    quiet = replace(question, traffic=traffic_of(3), region="eu-central-1", residency=residency)
    answer = plan(quiet)
    assert answer.fleet.pattern == "queue with scale to zero"
    assert not [quote for quote in answer.cost.managed if quote.is_available]
    assert "not in EU" in next(quote for quote in answer.cost.managed if quote.state == "active").note


@pytest.mark.parametrize("shape", list(TrafficShape))
@pytest.mark.parametrize("slo", [250, 4000, None])
def test_the_bill_is_that_of_the_pattern(question, plan, catalog, shape, slo):
    answer = plan(replace(question, traffic=traffic_of(2000, shape), slo_seconds=slo))
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
        rare = replace(question, traffic=traffic_of(60, shape), slo_seconds=slo, region="eu-central-1")
        scaled, warm = plan(rare), plan(replace(rare, runtime=runtime))
        assert not warm.fleet.size.is_scaled
        assert scaled.fleet.size.is_scaled == (slo == 900)
        assert scaled.fleet.size.worst_p95 <= slo
        assert scaled.cost.usd_per_day <= warm.cost.usd_per_day
        assert scaled.fleet.size.spare_instances >= 1


def test_tenants_on_separate_hardware_scale_to_zero_each_on_their_own(question, plan):
    rare = replace(question, traffic=traffic_of(60), slo_seconds=900, region="eu-central-1")
    shared, apart = plan(rare), plan(replace(rare, tenants=5, tenancy=Tenancy.INSTANCE))
    assert apart.fleet.size.is_scaled
    assert apart.fleet.size.pools == apart.fleet.size.spare_instances == 5
    assert apart.cost.usd_per_day > shared.cost.usd_per_day


def test_nobody_commits_to_machines_that_scale_to_zero(question, plan):
    rare = replace(question, traffic=traffic_of(20), slo_seconds=900, terms=Terms(0.3, 0.5))
    answer = plan(replace(rare, region="eu-central-1"))
    (part,) = answer.cost.purchase
    assert (part.how, part.instances) == ("on demand", answer.fleet.size.instances)
    assert "Commit to nothing" in answer.cost.warnings[0]
    assert [way.name for way in answer.cost.purchase_options] == ["on demand"]


def test_the_night_needs_no_machine_if_one_can_be_started_in_time(question, plan):
    busy = replace(question, traffic=traffic_of(2000, TrafficShape.BUSINESS), terms=Terms(0.6))
    for slo, is_warm in ((250, True), (4000, False)):
        size = plan(replace(busy, slo_seconds=slo)).fleet.size
        assert (size.warm_instances > 0) == is_warm


def test_a_discount_and_spot_change_the_bill_and_the_verdict(question, plan):
    full, committed = plan(question), plan(replace(question, terms=Terms(0.4)))
    spot = plan(replace(question, terms=Terms(interruptible_share=0.5)))
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
    traffic = traffic_of(2000, shape)
    answer = plan(replace(question, traffic=traffic))
    size = answer.fleet.size
    left = size.replicas - size.replicas // size.instances
    arrivals = peak_arrivals(traffic, 6000, seed=99)
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
    assert "Filmgate renders a clip on one GPU" in reason
    assert all(option.gpus_per_replica == 1 for option in plan(question).options)


def test_products_in_fp8_are_never_recommended_and_int8_is(question, plan):
    answer = plan(replace(question, precision="fp8"))
    assert not answer.is_possible
    assert answer.verdict.startswith("Not with Filmgate: it stores weights in fp8")
    assert "--precision int8" in answer.verdict
    assert plan(replace(question, precision="int8")).is_possible


def test_a_model_without_a_family_is_not_recommended(question, plan, catalog):
    model = catalog.video_model("mochi-1")
    answer = plan(VideoQuestion(model, clip_for(model)))
    assert not answer.is_possible
    assert "cannot load MochiPipeline" in answer.verdict


def test_a_region_without_prices_is_planned_with_estimates_that_are_named(question, plan):
    answer = plan(replace(question, region="sa-east-1", residency="BR"))
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


def test_a_plan_with_one_step_has_no_plan_b_with_fewer(question, plan):
    answer = plan(replace(question, clip=replace(question.clip, steps=1)))
    assert "fewer steps" not in {way.name for way in answer.plan_b}


def test_a_managed_api_is_the_decision_and_your_own_fleet_is_plan_b(question, plan):
    answer = plan(replace(question, traffic=traffic_of(3), slo_seconds=200))
    assert answer.verdict.startswith("Use Luma Ray2 540p on Bedrock at $3.75 per clip. Your own fleet")
    decision = next(dict(table.rows) for table in tables(answer) if table.title == "Decision")
    assert decision["managed API"] == "Luma Ray2 540p on Bedrock"
    assert decision["per clip"] == "$3.75"
    assert decision["per month"] == "$342.19"
    assert decision["your own fleet instead"].startswith("2 x g6e.xlarge")
    record = to_record(answer, date(2026, 11, 18))
    assert "Luma Ray2 540p on Bedrock publishes no latency; measure it." in record
    assert "Confidence: medium: its latency is not published." in record
    own, *others = answer.plan_b
    assert (own.name, own.what) == ("your own fleet", "2 x g6e.xlarge")
    assert "the provider" not in {way.name for way in others}


@pytest.mark.parametrize("shape", [TrafficShape.BUSINESS, TrafficShape.BURSTY])
def test_the_break_even_agrees_with_the_bill(question, plan, catalog, shape):
    """Formulas alone place it on the other side of this volume for one of the prices."""
    model = catalog.video_model("wan2.1-t2v-14b")
    hard = replace(question, model=model, clip=clip_for(model), slo_seconds=4000)
    answer = plan(replace(hard, traffic=traffic_of(30, shape)))
    for quote in answer.cost.managed:
        crossing = quote.break_even_clips_per_day
        is_own_cheaper = answer.cost.usd_per_clip <= quote.usd_per_clip
        assert is_own_cheaper == (crossing is not None and crossing <= 30)


def test_a_bare_gpu_has_a_fleet_for_its_volume_and_no_price(question, plan, catalog):
    answer = plan(replace(question, gpu=catalog.gpu("H100")))
    size = answer.fleet.size
    assert answer.verdict.startswith(f"Run {size.instances} x H100, always warm. A clip takes ")
    assert "(limit 400 s)" in answer.verdict
    assert "$" not in answer.verdict


def test_weights_in_eight_bits_save_memory_and_are_downloaded_in_full(question, plan, catalog):
    full, small = plan(question), plan(replace(question, precision="int8"))
    (lever,) = [one for one in full.memory.levers if "int8" in one.name]
    assert lever.peak_bytes == pytest.approx(small.memory.peak_bytes)
    assert not [one for one in small.memory.levers if "int8" in one.name]
    assert small.fleet.cold_start == full.fleet.cold_start
    model = catalog.video_model("svd-xt")
    blocks = plan(VideoQuestion(model, clip_for(model), precision="int8"))
    assert "does not store weights of svd-xt in int8" in blocks.verdict


def test_each_tenant_on_separate_hardware_waits_in_a_queue_of_its_own(question, plan):
    """The same replicas in smaller queues wait longer."""
    busy = replace(question, traffic=traffic_of(20_000))
    shared, apart = plan(busy), plan(replace(busy, tenants=8, tenancy=Tenancy.GPU))
    one, eight = (dict(answer.plots.latency[0].points)[0.875] for answer in (shared, apart))
    assert apart.fleet.size.replicas >= shared.fleet.size.replicas
    assert eight > one


def test_a_fleet_on_demand_elsewhere_is_not_priced_with_committed_hours(question, plan):
    """A commitment is paid for 24 hours, a machine on demand for those of the day."""
    day = replace(question, traffic=traffic_of(2000, TrafficShape.BUSINESS), slo_seconds=250)
    full, committed = plan(day), plan(replace(day, terms=Terms(0.65)))
    assert {part.how for part in committed.cost.purchase} == {"committed"}
    here = [
        next(row for row in answer.cost.regions if row.region == "us-east-1") for answer in (full, committed)
    ]
    assert here[0].usd_per_month == here[1].usd_per_month == pytest.approx(full.cost.usd_per_month)


def test_plan_b_stays_in_the_jurisdiction(question, plan, catalog):
    region = plan(replace(question, region="eu-central-1", residency="EU")).plan_b[1]
    assert catalog.region(region.what.split(" in ")[1]).jurisdiction == "EU"


def test_the_blast_radius_of_a_machine_is_its_share_of_the_fleet(question, plan):
    answer = plan(replace(question, traffic=traffic_of(20_000)))
    blast, size = answer.fleet.blast_radius, answer.fleet.size
    assert blast.share_lost == pytest.approx(1 / size.instances)
    assert answer.time.seconds_per_clip <= blast.latency_p95 + 1e-9 <= 400
    assert blast.zones == 2


@pytest.mark.parametrize(
    ("looser", "tighter"),
    [
        ((500, {}), (900, {})),
        ((2000, {"slo_seconds": 900}), (2000, {"slo_seconds": 220})),
        ((2000, {"spare_machines": 0}), (2000, {"spare_machines": 2})),
    ],
)
def test_more_work_a_tighter_target_and_more_spares_never_cost_less(question, plan, looser, tighter):
    for shape in TrafficShape:
        low, high = (
            plan(replace(question, traffic=traffic_of(volume, shape), **changes)).cost.usd_per_day
            for volume, changes in (looser, tighter)
        )
        assert low <= high


def test_higher_prices_never_cost_less(question, catalog, calibration):
    expensive = catalog.with_entries(
        prices=[replace(p, on_demand=p.on_demand * 1.3) for p in catalog.prices.values() if p.on_demand]
    )
    low, high = (plan_video(question, facts, calibration).cost.usd_per_day for facts in (catalog, expensive))
    assert high == pytest.approx(1.3 * low)


@pytest.mark.parametrize("name", ["g7.2xlarge", "g4dn.2xlarge"])
def test_a_gpu_without_a_published_bf16_rate_is_planned_with_a_wide_interval(question, plan, name):
    answer = plan(replace(question, instances=(name,), slo_seconds=None))
    (option,) = answer.options
    assert option.high / option.low > 2
    assert answer.time.is_extrapolated


def test_recorded_arrivals_replace_the_volume(question, plan):
    times = tuple(float(60 * i) for i in range(300))
    answer = plan(replace(question, traffic=recorded_traffic(times)))
    assert answer.fleet.arrivals.per_day == pytest.approx(300 / (299 * 60) * 86_400)
    assert answer.fleet.size.worst_p95 <= 400


def test_regions_are_listed_under_the_residency_rule_with_the_cost_of_the_fleet(question, plan):
    """The regions of the law come first."""
    answer = plan(replace(question, region="eu-central-1", residency="EU"))
    regions = answer.cost.regions
    assert [row.is_allowed for row in regions] == sorted((row.is_allowed for row in regions), reverse=True)
    assert all((row.jurisdiction == "EU") == row.is_allowed for row in regions)
    here = next(row for row in regions if row.region == "eu-central-1")
    assert here.usd_per_month == pytest.approx(answer.cost.usd_per_month)


def test_fewer_steps_never_cost_more_than_the_decision(question, plan):
    """Both are simulated: a formula beside a simulation made half the work more expensive here."""
    quiet = replace(question, traffic=traffic_of(100), slo_seconds=600, region="eu-central-1")
    answer = plan(quiet)
    steps = next(way for way in answer.plan_b if way.name == "fewer steps")
    assert answer.fleet.size.is_scaled
    assert steps.usd_per_month <= answer.cost.usd_per_month


def test_a_machine_that_only_the_simulation_finds_too_small_is_rejected_with_the_reason(question, plan):
    """Formulas give each of these tenants two replicas, the simulation three: more than a fleet may have."""
    many = replace(question, instances=("g6e.xlarge",), tenants=1500, tenancy=Tenancy.GPU, slo_seconds=220)
    answer = plan(replace(many, traffic=traffic_of(300_000)))
    assert [(one.name, one.unit) for one in answer.rejected] == [("g6e.xlarge", "clips/day")]
    assert answer.verdict.startswith("Too much for one fleet: 300,000 clips per day")


def test_the_assumed_interruptions_are_those_of_the_question(question, plan):
    answer = plan(replace(question, terms=Terms(interruptions_per_day=3)))
    (interrupted,) = [text for text in answer.assumptions if "interrupted" in text]
    assert interrupted.startswith("spot machines are interrupted at a rate of 3 per day")


def test_a_provider_without_a_published_latency_is_not_promised_for_an_impossible_slo(question, plan):
    verdict = plan(replace(question, slo_seconds=1)).verdict
    assert "use Luma Ray2 540p on Bedrock at $3.75 per clip, which publishes no latency" in verdict


def test_the_figure_of_a_machine_without_enough_memory_is_above_its_limit(question, plan):
    small = [one for one in plan(question).rejected if one.unit == "GiB"]
    assert any("host memory" in one.reason for one in small)
    assert all(one.number > one.limit for one in small)


@pytest.mark.parametrize("clips", [1, 1_000_000])
def test_no_figure_for_people_has_an_exponent(question, plan, clips):
    large = clip_for(question.model, size=Size(8192, 4096)) if clips == 1 else question.clip
    answer = plan(replace(question, clip=large, traffic=traffic_of(clips), slo_seconds=None))
    cells = [cell for table in tables(answer) for row in table.rows for cell in row]
    assert not [text for text in (answer.question, answer.verdict, *cells) if re.search(r"\de[+-]\d", text)]


def test_a_plan_without_a_volume_has_one_machine_at_every_hour(question, plan):
    deployment = plan(replace(question, traffic=None)).fleet.deployment
    assert deployment.machines == deployment.machines_in_quiet_hours == deployment.chart.min_replicas == 1


def test_the_machines_to_deploy_are_those_of_the_hour(question, plan):
    def machines(traffic, slo):
        answer = plan(replace(question, traffic=traffic, slo_seconds=slo))
        return next(dict(table.rows) for table in tables(answer) if table.title == "What to deploy")[
            "machines"
        ]

    assert re.fullmatch(r"\d+", machines(traffic_of(2000), 250))
    assert re.fullmatch(r"\d+, in the quiet hours 1", machines(traffic_of(2000, TrafficShape.BUSINESS), 250))
    assert re.fullmatch(r"0 to \d+", machines(traffic_of(60), 900))


def test_a_plan_without_a_volume_gives_no_reason_about_arrivals(question, plan):
    fleet = plan(replace(question, traffic=None)).fleet
    assert fleet.reasons[-1] == "no volume is given, so the cost is that of a machine that is always busy"


def test_a_machine_without_a_price_is_rejected_with_a_remedy(question, plan, catalog, calibration):
    unpriced = plan(replace(question, instances=("p5e.48xlarge",))).verdict
    fit = plan_fit(catalog, calibration, "us-east-1", instance="p5e.48xlarge").verdict
    for verdict in (unpriced, fit):
        assert verdict.endswith(
            "no on-demand price in us-east-1. Give another --region, or a --prices file that has one."
        )
