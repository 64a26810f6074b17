"""Bills by purchase, and break-even points."""

from dataclasses import replace

import pytest

from filmgate.planner.fleet.money import (
    DEFAULT_TERMS,
    SAVINGS_PLANS,
    Order,
    Terms,
    break_even,
    purchase_options,
    warnings,
)
from filmgate.planner.fleet.sizing import Demand, Layout, size_fleet
from filmgate.planner.fleet.traffic import TrafficShape, traffic_of

BUSINESS = traffic_of(4000, TrafficShape.BUSINESS)


@pytest.fixture
def price(catalog):
    return replace(catalog.price("g7e.2xlarge", "us-east-1"), on_demand=2.0, spot_median=0.5)


def fleet_for(traffic, slo=90):
    return size_fleet(Demand(traffic, 60, 70, slo), Layout(), is_simulated=False)


def test_a_warm_fleet_is_billed_for_24_hours(price):
    traffic = traffic_of(500, TrafficShape.STEADY)
    fleet = fleet_for(traffic)
    cost = Order(fleet, traffic, price, 60).bill(DEFAULT_TERMS)
    assert cost.usd_per_day == pytest.approx(fleet.instances * 24 * 2.0)
    busy = 500 * 60 / 3600 * 2.0
    assert cost.idle_usd_per_day == pytest.approx(cost.usd_per_day - busy)


def test_business_hours_are_billed_for_the_full_fleet_only_during_the_day(price):
    fleet = fleet_for(BUSINESS)
    cost = Order(fleet, BUSINESS, price, 60).bill(DEFAULT_TERMS)
    assert cost.usd_per_day == pytest.approx(2.0 * (fleet.instances * 10 + 1 * 14))


def test_the_bill_is_the_sum_of_its_purchases(price):
    fleet = fleet_for(BUSINESS)
    cost = Order(fleet, BUSINESS, price, 60, 200).bill(Terms(0.4, 0.25))
    parts = {part.how: part for part in cost.purchases}
    assert sum(part.instances for part in cost.purchases) == fleet.instances
    assert parts["committed"].usd_per_hour == pytest.approx(1.2)
    assert parts["spot"].usd_per_hour == 0.5
    assert cost.usd_per_day == pytest.approx(
        sum(part.instances * part.hours_per_day * part.usd_per_hour for part in cost.purchases)
    )


def test_a_commitment_and_spot_lower_the_bill(price):
    fleet = fleet_for(BUSINESS)
    costs = [
        Order(fleet, BUSINESS, price, 60).bill(terms).usd_per_day
        for terms in (DEFAULT_TERMS, Terms(0.3), Terms(0.3, 0.5))
    ]
    assert costs[0] > costs[1] > costs[2]


def test_a_machine_is_committed_only_where_its_hours_pay_for_it(price):
    fleet = fleet_for(BUSINESS)

    def committed(discount):
        cost = Order(fleet, BUSINESS, price, 60).bill(Terms(discount))
        return sum(part.instances for part in cost.purchases if part.how == "committed")

    assert committed(0.3) == fleet.warm_instances  # ten hours on demand cost less than 24 at 70 %
    assert committed(0.6) == fleet.instances


def test_spot_is_not_bought_where_a_commitment_is_cheaper(price):
    near = replace(price, spot_median=1.99)
    cost = Order(fleet_for(BUSINESS), BUSINESS, near, 60, 600).bill(Terms(0.4, 0.5))
    assert {part.how for part in cost.purchases} == {"committed", "on demand"}


def test_interruptions_of_spot_machines_are_paid(price):
    fleet = fleet_for(BUSINESS)
    quick, slow = (
        Order(fleet, BUSINESS, price, 60, start).bill(Terms(None, 0.5)).usd_per_day for start in (0, 600)
    )
    assert slow > quick


def test_without_a_rate_the_bill_is_on_demand_and_says_what_is_missing(price):
    traffic = traffic_of(500, TrafficShape.STEADY)
    order = Order(fleet_for(traffic), traffic, price, 60, 0)
    (part,) = order.bill(DEFAULT_TERMS).purchases
    assert (part.how, part.usd_per_hour) == ("on demand", 2.0)
    plans = [way for way in purchase_options(order, DEFAULT_TERMS) if "Savings Plan" in way.name]
    assert all(way.usd_per_month is None and "--commit-discount" in way.note for way in plans)


def test_a_savings_plan_of_the_catalog_is_bought_by_its_term(price):
    """Rates by term, one year by default, a warning against three, no reservations."""
    traffic = traffic_of(500, TrafficShape.STEADY)
    known = replace(price, savings_1y=1.5, savings_3y=1.1)
    order = Order(fleet_for(traffic), traffic, known, 60, 0)
    (part,) = order.bill(DEFAULT_TERMS).purchases
    assert (part.how, part.usd_per_hour) == ("committed", 1.5)
    assert "1 year, 25% off; the catalog's rate" in part.note
    (longer,) = order.bill(Terms(commit_years=3)).purchases
    assert longer.usd_per_hour == 1.1
    one, three = warnings(order, DEFAULT_TERMS), warnings(order, Terms(commit_years=3))
    assert "no Reserved Instances" in one[0]
    assert len(one) == 1
    assert "three years" in three[1]
    ways = {way.name: way.usd_per_month for way in purchase_options(order, DEFAULT_TERMS)}
    assert ways["Compute Savings Plan, 3 years"] < ways["the bill"] < ways["on demand"]


@pytest.mark.parametrize("machines", [2, 3, 6, 7])
def test_a_share_of_less_than_one_machine_is_not_spot_and_the_warning_names_a_share_that_is(price, machines):
    """10 % of a few machines rounds to none."""
    traffic = traffic_of(500, TrafficShape.STEADY)
    fleet = replace(fleet_for(traffic), instances=machines, replicas=machines, warm_instances=machines)
    order = Order(fleet, traffic, price, 60, 0)
    assert order.bill(Terms(None, 0.1)).usd_per_day == order.bill(DEFAULT_TERMS).usd_per_day
    text = warnings(order, Terms(None, 0.1))[-1]
    share = float(text.rpartition("--interruptible ")[2].rstrip("."))
    assert order.bill(Terms(None, share)).usd_per_day < order.bill(DEFAULT_TERMS).usd_per_day


def test_a_single_machine_is_never_spot_and_the_warning_says_why(price):
    traffic = traffic_of(500, TrafficShape.STEADY)
    fleet = replace(fleet_for(traffic), instances=1, replicas=1, warm_instances=1)
    warning = warnings(Order(fleet, traffic, price, 60, 0), Terms(None, 0.9))[-1]
    assert warning == "No spot: the plan has a single machine."


def test_spot_that_is_not_bought_because_of_a_commitment_is_explained(price):
    traffic = traffic_of(500, TrafficShape.STEADY)
    order = Order(fleet_for(traffic), traffic, replace(price, spot_median=price.on_demand * 0.9), 60, 0)
    assert "spot" in {part.how for part in order.bill(Terms(None, 0.5)).purchases}
    assert warnings(order, Terms(None, 0.5))[-1] == SAVINGS_PLANS
    costs_more = "No spot: a spot machine costs more than one that is bought otherwise."
    assert warnings(order, Terms(0.3, 0.5))[-1] == costs_more


@pytest.mark.parametrize(
    ("pools", "per_machine", "machines", "is_shared", "counts"),
    [
        (1, 1, 4, True, [0, 1, 2, 3, 3]),
        (3, 1, 9, False, [0, 0, 0, 3, 3, 3, 6, 6, 6, 6]),
        (2, 2, 4, False, [0, 0, 2, 2, 2]),  # a machine has replicas of one tenant only
        (2, 2, 4, True, [0, 1, 2, 3, 3]),
        (5, 2, 10, True, [0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5]),
        (5, 2, 8, True, [0, 0, 0, 3, 3, 5, 5, 5, 5]),  # 3 of 16 replicas per tenant: one GPU is not needed
        (5, 2, 3, True, [0, 0, 0, 0]),  # each tenant has one replica, on demand
    ],
)
def test_spot_machines_have_the_same_workers_of_each_tenant(
    price, pools, per_machine, machines, is_shared, counts
):
    traffic = traffic_of(500, TrafficShape.STEADY)
    size = {"replicas": machines * per_machine, "instances": machines, "warm_instances": machines}
    fleet = replace(fleet_for(traffic), pools=pools, **size)
    order = Order(fleet, traffic, price, 60, is_machine_shared=is_shared)
    assert [order.spot_machines(most) for most in range(machines + 1)] == counts
    warned = warnings(order, Terms(None, 0.01))[-1]
    if not any(counts):
        assert (
            warned == "No spot: 3 machines are too few for spot and on-demand workers of each of 5 tenants."
        )
        return
    share = float(warned.rpartition("--interruptible ")[2].rstrip("."))
    bought = order.bill(Terms(None, share)).purchases
    assert sum(part.instances for part in bought if part.how == "spot") == next(n for n in counts if n)


def test_only_spot_machines_that_can_be_deployed_are_bought_where_a_commitment_is_cheaper_for_the_others(
    price,
):
    """Spot is cheaper than the busy hours on demand, and dearer than a commitment of the warm machines."""
    fleet = replace(fleet_for(BUSINESS), pools=5, replicas=16, instances=8, warm_instances=4)
    bought = Order(fleet, BUSINESS, replace(price, spot_median=1.5), 60).bill(Terms(0.4, 0.9)).purchases
    assert [(part.how, part.instances) for part in bought] == [
        ("on demand", 1),
        ("spot", 3),
        ("committed", 4),
    ]


@pytest.mark.parametrize("shape", list(TrafficShape))
def test_more_interruptions_cost_more(price, shape):
    """Also of machines that run all day, whose lost hours another machine has to replace."""
    traffic = traffic_of(4000, shape)
    order = Order(fleet_for(traffic), traffic, price, 60, 600)
    rare, often = (order.bill(Terms(None, 0.5, 1, per_day)).usd_per_day for per_day in (0.1, 8))
    assert rare < often


def test_a_machine_that_is_interrupted_before_it_ends_a_clip_is_not_bought(price):
    traffic = traffic_of(4000)
    order = Order(fleet_for(traffic), traffic, price, 60, 600)
    assert {part.how for part in order.bill(Terms(None, 0.5, 1, 200)).purchases} == {"on demand"}


def test_the_bill_warns_where_interruptions_would_be_felt(price):
    traffic = traffic_of(4000)
    order = Order(fleet_for(traffic), traffic, price, 60, 600)
    rare, often = (warnings(order, Terms(None, 0.5, 1, per_day))[-1] for per_day in (1, 20))
    assert "Interruptions" not in rare
    assert "Interruptions take 15% of the time of a spot machine" in often


def test_break_even_is_the_volume_at_which_fleet_and_api_cost_the_same():
    assert break_even(lambda clips: 161.43, 7.50) == pytest.approx(21.5, abs=0.6)
    assert break_even(lambda clips: 1e12, 1.0) is None
    assert break_even(lambda clips: None, 1.0) is None


def test_break_even_is_the_volume_from_which_the_fleet_stays_cheaper():
    """A machine per 25 clips: two of them are cheaper at 24.5, a third makes them more expensive again."""

    def cost(clips):
        return 45.0 * (2 + clips // 25)

    assert cost(24.5) < 24.5 * 3.75
    assert break_even(cost, 3.75) == pytest.approx(36, abs=0.6)
    assert break_even(cost, 3.75, asked=30) == pytest.approx(36, abs=0.6)
    assert break_even(cost, 3.75, asked=24.5) == 24.5


def test_a_managed_clip_is_billed_by_its_fixed_lengths(catalog):
    luma = catalog.video_apis["luma.ray-v2:0-720p"]
    assert luma.usd_per_clip(5.06) == pytest.approx(7.50)
    assert luma.usd_per_clip(6.0) == pytest.approx(13.50)
    assert luma.usd_per_clip(10.0) == pytest.approx(15.0)  # 5 + 5, not 9 + 5
    assert luma.usd_per_clip(14.0) == pytest.approx(21.0)
