"""What a video plan says to deploy: the settings that it assumed, and the workers of each pool."""

from dataclasses import replace

import pytest

from filmgate.planner.fleet.money import Terms
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of
from filmgate.planner.video.answer import plan_video
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.question import VideoQuestion
from tests.plan_checks.video import find_spot_errors


@pytest.fixture
def ask(catalog, calibration):
    """The answer to a question about Wan 2.1 1.3B with these changes."""
    model = catalog.video_model("wan2.1-t2v-1.3b")

    def answer(quality="full", **changes):
        question = VideoQuestion(
            model, clip_for(model, quality=quality), traffic=traffic_of(8000), slo_seconds=300
        )
        return plan_video(replace(question, **changes), catalog, calibration)

    return answer


@pytest.fixture
def plan(ask):
    return lambda *args, **changes: ask(*args, **changes).fleet


def test_the_precision_and_the_quality_of_the_plan_are_settings_of_the_deployment(plan):
    plain, small = plan().deployment, plan(precision="int8", quality="draft").deployment
    assert (plain.weights, plain.default_quality) == ("full", "full")
    assert (small.weights, small.default_quality) == ("int8", "draft")


@pytest.mark.parametrize("shape", [TrafficShape.STEADY, TrafficShape.BUSINESS])
def test_spot_and_on_demand_workers_together_are_those_of_the_plan(plan, shape):
    fleet = plan(terms=Terms(interruptible_share=0.5), traffic=traffic_of(8000, shape))
    chart = fleet.deployment.chart
    assert chart.spot_replicas > 0
    assert chart.min_replicas + chart.min_spot_replicas == fleet.size.warm_replicas
    assert chart.max_replicas + chart.spot_replicas >= fleet.size.replicas
    assert chart.min_spot_replicas <= chart.spot_replicas


@pytest.mark.parametrize("tenancy", [Tenancy.GPU, Tenancy.INSTANCE])
def test_the_workers_of_separate_tenants_are_an_equal_part_of_the_fleet(plan, tenancy):
    fleet = plan(tenants=3, tenancy=tenancy)
    chart, size = fleet.deployment.chart, fleet.size
    assert fleet.deployment.pools == size.pools == 3
    assert size.needed_replicas // 3 <= chart.min_replicas == size.warm_replicas // 3
    assert chart.max_replicas * 3 <= max(size.replicas, size.replicas_p99)


@pytest.mark.parametrize("instance", ["g6e.xlarge", "g6e.12xlarge"])
@pytest.mark.parametrize("spare", [1, 2])
def test_the_workers_of_each_tenant_still_meet_the_target_when_a_machine_is_lost(plan, instance, spare):
    """The spare machines are in the bill, so the workers on them are in the values of the chart."""
    changes = {"tenants": 5, "tenancy": Tenancy.GPU, "instances": (instance,), "spare_machines": spare}
    fleet = plan(slo_seconds=220, traffic=traffic_of(1000), **changes)
    chart, size, per_machine = fleet.deployment.chart, fleet.size, fleet.deployment.workers_per_machine
    needed = size.needed_replicas // 5
    assert not size.is_scaled
    assert chart.min_replicas >= needed + spare * min(needed, per_machine)
    assert chart.min_replicas * 5 <= size.instances * per_machine
    assert size.spare_instances >= spare


@pytest.mark.parametrize("tenancy", Tenancy)
@pytest.mark.parametrize(
    ("instance", "tenants"), [("g6e.xlarge", 4), ("g6e.12xlarge", 3), ("g6e.12xlarge", 4)]
)
@pytest.mark.parametrize("shape", [TrafficShape.STEADY, TrafficShape.BUSINESS])
def test_the_spot_machines_of_the_bill_are_those_of_the_chart(ask, tenancy, instance, tenants, shape):
    """A tenant has whole workers, so a share of all machines may not be one of each tenant's machines."""
    question = {"tenants": tenants, "tenancy": tenancy, "instances": (instance,), "region": "us-east-2"}
    spot = []
    for share in (0.1, 0.3, 0.4, 0.5, 1.0):
        answer = ask(traffic=traffic_of(2000, shape), terms=Terms(interruptible_share=share), **question)
        assert list(find_spot_errors(answer)) == []
        parts = [part for part in answer.cost.purchase if part.how == "spot"]
        spot.append(sum(part.instances for part in parts))
        assert spot[-1] <= share * answer.fleet.size.instances
    assert sorted(spot) == spot
    assert spot[-1] > 0
