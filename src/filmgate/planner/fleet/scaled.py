"""A fleet that starts from zero machines when clips arrive, and ends when it is idle.

One simulation of whole days decides latency, hours and cost. A clip that finds no machine waits for the
autoscaler, the node, the image, the weights and the compilers. Machines are paid from their start until the
cooldown has passed and the empty node is removed. Spare machines run while any other one does.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from filmgate.planner.fleet.keda import SYNC_SECONDS, KedaSettings
from filmgate.planner.fleet.queueing import fewest_servers
from filmgate.planner.fleet.simulation import Operation, Outcome, day_arrivals, simulate
from filmgate.planner.fleet.sizing import (
    CONFIRMING_SEEDS,
    MAX_LATE,
    MAX_SIMULATED_REPLICAS,
    MAX_UTILISATION,
    ROUNDING,
    Demand,
    Fleet,
    Layout,
    per_pool,
)
from filmgate.planner.fleet.traffic import SECONDS_PER_DAY, Traffic

KEEP_SECONDS = 600.0  # karpenter.disruption.consolidateAfter of the chart
WAITING_PER_REPLICA = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)  # clips that wait for each replica, laziest first
MARGIN = (
    0.7  # of the clips that may be late: one run of days has a larger sampling error than three of a peak
)
SEED = 11
CLIPS_PER_RUN = 1000
MAX_CLIPS_PER_PART = 1500  # a larger fleet is simulated as equal parts, which overstates its cost a little


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds until a replica accepts work on a new machine, and on a machine that is there."""

    new_machine: float
    same_machine: float


def cold_latency(service: float, start: Start) -> float:
    """The longest time of a clip for which a replica has to be started."""
    keda = KedaSettings()
    reaction = max(keda.polling_seconds, keda.scale_out_seconds + SYNC_SECONDS)
    return reaction + start.new_machine + service


def is_cold_clip_in_time(demand: Demand, start: Start) -> bool:
    """Whether a clip that finds the fleet at zero meets the target, at the upper end of the interval.

    A percentile of the whole day would hide the first clip of every quiet period.
    """
    return demand.slo is None or cold_latency(demand.service_high, start) <= demand.slo


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings of the autoscaler that a plan chooses."""

    max_replicas: int
    waiting_per_replica: float

    def wanted(self, waiting: int, replicas: int) -> int:
        """Kubernetes' rule with the triggers of the chart: the larger one of backlog and running clips."""
        return max(replicas, math.ceil(waiting / self.waiting_per_replica))


def operation(limits: Limits, layout: Layout, start: Start) -> Operation:
    """The fleet of one pool as the chart runs it, without its spare machines."""
    keda = KedaSettings()
    return Operation(
        min_replicas=0,
        max_replicas=limits.max_replicas,
        scaling=limits.wanted,
        start_seconds=start.new_machine,
        cooldown_seconds=keda.scale_in_seconds,
        replicas_per_machine=layout.replicas_per_machine,
        keep_seconds=KEEP_SECONDS,
        restart_seconds=start.same_machine,
        activation_seconds=keda.polling_seconds,
        reaction_seconds=keda.scale_out_seconds + SYNC_SECONDS,
    )


def scaled_fleet(demand: Demand, layout: Layout, start: Start) -> Fleet | None:
    """The smallest fleet that meets the target from zero; None if none does."""
    if not is_cold_clip_in_time(demand, start):
        return None
    run = _Days(_part(demand, layout), SEED)
    if not run.arrivals:
        return None
    limits = _cheapest_limits(run, layout, start)
    if limits is None:
        return None
    outcome = run.simulate(demand.service, operation(limits, layout, start))
    worst = run.simulate(demand.service_high, operation(limits, layout, start)).percentile(0.95)
    return _fleet(demand, layout, limits, _Result(outcome, worst))


@dataclass(frozen=True, slots=True)
class _Result:
    """A run at the expected time of a clip, and p95 at the upper end of the interval."""

    outcome: Outcome
    worst_p95: float


class _Days:
    """The arrivals of whole days for one part of the fleet."""

    def __init__(self, demand: Demand, seed: int) -> None:
        traffic = demand.traffic
        self.demand = demand
        days = max(1, math.ceil(CLIPS_PER_RUN / traffic.per_day))
        self.arrivals = day_arrivals(traffic, days, seed)
        self._span = self.arrivals[-1] if traffic.given else days * float(SECONDS_PER_DAY)

    def simulate(self, service: float, fleet: Operation) -> Outcome:
        return simulate(self.arrivals, service, fleet, self._span)

    def is_late(self, fleet: Operation, share: float) -> bool:
        """Whether more than `share` of the clips are late, at the upper end of the interval."""
        if self.demand.slo is None:
            return False
        limit = self.demand.slo * (1 + ROUNDING)
        latencies = self.simulate(self.demand.service_high, fleet).latencies
        return sum(latency > limit for latency in latencies) > share * len(latencies)


def _cheapest_limits(run: _Days, layout: Layout, start: Start) -> Limits | None:
    """The laziest scaling that meets the target, and the fewest replicas with it."""
    traffic = run.demand.traffic
    stable = max(1, math.ceil(traffic.peak_rate * run.demand.service_high / MAX_UTILISATION))
    if stable > MAX_SIMULATED_REPLICAS:
        return None

    def is_enough(limits: Limits) -> bool:
        return not run.is_late(operation(limits, layout, start), MAX_LATE * MARGIN)

    most = max(stable, len(run.arrivals))
    place = bisect_left(WAITING_PER_REPLICA, True, key=lambda waiting: is_enough(Limits(most, waiting)))
    if place == len(WAITING_PER_REPLICA):
        return None
    waiting = WAITING_PER_REPLICA[place]
    if is_enough(Limits(stable, waiting)):
        return Limits(stable, waiting)
    found = fewest_servers(lambda replicas: is_enough(Limits(replicas, waiting)), stable)
    return Limits(found, waiting) if found is not None else None


def _fleet(demand: Demand, layout: Layout, limits: Limits, result: _Result) -> Fleet:
    parts, outcome = _parts(demand, layout), result.outcome
    spare = layout.spare_machines if demand.slo is not None else 0
    machines = math.ceil(limits.max_replicas / layout.replicas_per_machine)
    part_hours, up_hours = outcome.per_day(outcome.machine_seconds), outcome.per_day(outcome.up_seconds)
    instances = machines * parts + spare * layout.pools
    replicas = instances * layout.replicas_per_machine
    p95 = outcome.percentile(0.95)
    return Fleet(
        replicas=replicas,
        replicas_p99=None,
        gpus_per_replica=layout.gpus_per_replica,
        instances=instances,
        utilisation=demand.traffic.average_rate * demand.service / replicas,
        wait_p95=p95 - demand.service,
        latency_p95=p95,
        latency_p99=outcome.percentile(0.99),
        warm_replicas=0,
        warm_instances=0,
        needed_replicas=limits.max_replicas * parts,
        spare_instances=spare * layout.pools,
        pools=layout.pools,
        worst_p95=result.worst_p95,
        is_simulated=True,
        machine_hours=part_hours * parts + up_hours * spare * layout.pools,
        up_hours=up_hours,
        cold_share=outcome.cold / len(outcome.latencies),
        waiting_per_replica=limits.waiting_per_replica,
    )


def late_runs(demand: Demand, layout: Layout, start: Start, fleet: Fleet) -> int:
    """How many of the confirming runs miss the target of a fleet that `scaled_fleet` sized."""
    if demand.slo is None or demand.traffic.given:
        return 0
    part, running = _part(demand, layout), _sized_operation(demand, layout, start, fleet)
    return sum(_Days(part, seed).is_late(running, MAX_LATE) for seed in CONFIRMING_SEEDS)


def latency_again(demand: Demand, layout: Layout, start: Start, fleet: Fleet, seed: int) -> float:
    """p95 of the fleet with other arrivals, at the upper end of the interval and without spare machines."""
    running = _sized_operation(demand, layout, start, fleet)
    return _Days(_part(demand, layout), seed).simulate(demand.service_high, running).percentile(0.95)


def _sized_operation(demand: Demand, layout: Layout, start: Start, fleet: Fleet) -> Operation:
    limits = Limits(fleet.needed_replicas // _parts(demand, layout), fleet.waiting_per_replica)
    return operation(limits, layout, start)


def estimated_fleet(demand: Demand, layout: Layout, start: Start, warm: Fleet) -> Fleet | None:
    """`scaled_fleet` by formulas: machines that are up with the probability of a clip in the last minutes."""
    if not is_cold_clip_in_time(demand, start):
        return None
    traffic = per_pool(demand.traffic, layout.pools)
    most = max(1.0, warm.needed_replicas / layout.pools)
    together = min(most, traffic.batch)  # replicas that a batch starts
    busy = demand.service * traffic.batch / together
    stay = busy + KedaSettings().scale_in_seconds + KEEP_SECONDS
    is_tight = demand.slo is not None and demand.slo < 2 * cold_latency(demand.service_high, start)
    spread = 2.0 if is_tight else 0.3  # standard deviations of the load; with time, few replicas catch up
    up = machine_hours = 0.0
    for hour in range(24):
        rate = traffic.hour_rate(hour)
        batches, load = rate / traffic.batch, rate * demand.service
        idle = math.exp(-batches * stay)
        share = min(1.0, 1 - idle + batches * idle * start.new_machine)
        replicas = min(most, max(together, load + spread * math.sqrt(load * traffic.batch)))
        up += share
        machine_hours += share * math.ceil(replicas / layout.replicas_per_machine - ROUNDING)
    spare = layout.spare_machines if demand.slo is not None else 0
    p95 = cold_latency(demand.service, start)
    return Fleet(
        replicas=warm.replicas,
        replicas_p99=None,
        gpus_per_replica=warm.gpus_per_replica,
        instances=warm.instances,
        utilisation=warm.utilisation,
        wait_p95=p95 - demand.service,
        latency_p95=p95,
        latency_p99=p95,
        warm_replicas=0,
        warm_instances=0,
        needed_replicas=warm.needed_replicas,
        spare_instances=spare * layout.pools,
        pools=layout.pools,
        worst_p95=cold_latency(demand.service_high, start),
        machine_hours=(machine_hours + up * spare) * layout.pools,
        up_hours=up,
        cold_share=math.exp(-traffic.peak_rate / traffic.batch * stay),
    )


def _parts(demand: Demand, layout: Layout) -> int:
    """Equal parts of the fleet that are simulated one by one: the pools, or smaller ones."""
    one = demand.traffic.per_day / layout.pools
    return layout.pools * math.ceil(one / MAX_CLIPS_PER_PART)


def _part(demand: Demand, layout: Layout) -> Demand:
    traffic: Traffic = per_pool(demand.traffic, _parts(demand, layout))
    return Demand(traffic, demand.service, demand.service_high, demand.slo)
