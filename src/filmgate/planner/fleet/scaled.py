"""A fleet that starts from zero machines when clips arrive, and ends when it is idle.

One simulation of whole days decides latency, hours and cost. A clip that finds no machine waits for the
autoscaler, the node, the image, the weights and the compilers. Machines are paid from their start until the
cooldown has passed and the empty node is removed. Spare machines run while any other one does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from filmgate.planner.fleet.keda import SYNC_SECONDS, KedaSettings
from filmgate.planner.fleet.simulation import Operation, day_arrivals, simulate
from filmgate.planner.fleet.sizing import (
    MAX_LATE,
    MAX_SIMULATED_REPLICAS,
    MAX_UTILISATION,
    ROUNDING,
    Demand,
    Fleet,
    Layout,
    confirmed,
    per_pool,
)
from filmgate.planner.fleet.starts import Start
from filmgate.planner.fleet.traffic import SECONDS_PER_DAY, Traffic
from filmgate.planner.percentiles import percentile_of_sorted

KEEP_SECONDS = 600.0  # karpenter.disruption.consolidateAfter of the chart
WAITING_PER_REPLICA = (8.0, 4.0, 2.0, 1.0, 0.5, 0.25)  # clips that wait for each replica, slowest first
# Of the clips that may be late: one run of days has a larger sampling error than three of a peak.
MARGIN = 0.7
MORE_REPLICAS = (0, 1, 3, 8, 20)  # added to what the work needs; the limits that are tried
TIMES_REPLICAS = (1.25, 1.6, 2.5)
SEED = 11
CLIPS_PER_RUN = 1000
MAX_CLIPS_PER_PART = 1500  # of a larger fleet one part is simulated, which overstates its cost a little


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


def operation(
    max_replicas: int, waiting_per_replica: float, replicas_per_machine: int, start: Start
) -> Operation:
    """A pool as the chart runs it, without its spare machines. A plan chooses the first two values."""
    keda = KedaSettings()
    return Operation(
        min_replicas=0,
        max_replicas=max_replicas,
        start_seconds=start.new_machine,
        cooldown_seconds=keda.scale_in_seconds,
        waiting_per_replica=waiting_per_replica,
        replicas_per_machine=replicas_per_machine,
        keep_seconds=KEEP_SECONDS,
        restart_seconds=start.same_machine,
        activation_seconds=keda.polling_seconds,
        reaction_seconds=keda.scale_out_seconds + SYNC_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class _Days:
    """The result of simulated days; hours are per day.

    Not more clips than may be late exceed `latency_allowed`. A fleet is sized with `latency_sized`, which
    fewer clips exceed.
    """

    machine_hours: float
    up_hours: float
    cold_share: float
    p95: float
    p99: float
    latency_sized: float
    latency_allowed: float
    peak: int


def scaled_fleet(demand: Demand, layout: Layout, start: Start) -> Fleet | None:
    """The cheapest fleet that meets the target from zero; None if none does.

    Pools never need fewer hours than larger pools that they are parts of: the sampling error of the simulated
    days may be more than what sharing saves.
    """
    setting = _cheapest(demand, layout, start)
    if setting is None:
        return None
    hours = _hours(demand, layout, setting)
    for pools in (n for n in range(1, layout.pools) if layout.pools % n == 0):
        larger = replace(layout, pools=pools)
        if (shared := _cheapest(demand, larger, start)) is not None:
            hours = max(hours, _hours(demand, larger, shared))
    return replace(_fleet(demand, layout, setting), machine_hours=hours)


def _cheapest(demand: Demand, layout: Layout, start: Start) -> Operation | None:
    """The setting with the fewest machine hours that meets the target, and of equal ones the smallest."""
    if not is_cold_clip_in_time(demand, start):
        return None
    part = _part(demand, layout)
    ranked = sorted(
        _settings(part, layout, start),
        key=lambda setting: (_hours(demand, layout, setting), setting.max_replicas),
    )
    return next((setting for setting in ranked if _is_in_time(part, setting)), None)


def _hours(demand: Demand, layout: Layout, setting: Operation) -> float:
    """Machine hours per day of all pools, with the spare machines that run while any other does."""
    part = _part(demand, layout)
    run = _run(part.traffic, part.service, setting)
    spare = layout.spare_machines if demand.slo is not None else 0
    return (run.machine_hours * _parts(demand, layout) + run.up_hours * spare) * layout.pools


@lru_cache(maxsize=4096)
def _run(traffic: Traffic, service: float, setting: Operation, seed: int = SEED) -> _Days:
    """Whole days of business hours, or as many hours as the clips of a run take to arrive."""
    days = CLIPS_PER_RUN / traffic.per_day
    if traffic.busy_hours < 24:
        days = float(math.ceil(days))
    arrivals = day_arrivals(traffic, days, seed)
    clips = len(arrivals)
    if traffic.given:
        days = clips / traffic.per_day
    outcome = simulate(arrivals, service, setting, days * SECONDS_PER_DAY)
    ordered = sorted(outcome.latencies)
    machines = math.ceil(setting.max_replicas / setting.replicas_per_machine)
    return _Days(
        machine_hours=min(24.0 * machines, outcome.machine_seconds / clips * traffic.per_day / 3600),
        up_hours=outcome.up_seconds / outcome.span_seconds * 24,
        cold_share=outcome.cold / clips,
        p95=percentile_of_sorted(ordered, 0.95),
        p99=percentile_of_sorted(ordered, 0.99),
        latency_sized=ordered[clips - 1 - int(MAX_LATE * MARGIN * clips)],
        latency_allowed=ordered[clips - 1 - int(MAX_LATE * clips)],
        peak=outcome.peak,
    )


def _settings(part: Demand, layout: Layout, start: Start) -> Iterator[Operation]:
    """Every setting of the autoscaler that is tried, slowest first. No setting depends on the target.

    A tighter target therefore chooses from fewer fleets, and the cheapest of fewer never costs less.
    """
    stable = max(1, math.ceil(part.traffic.peak_rate * part.service_high / MAX_UTILISATION))
    if stable > MAX_SIMULATED_REPLICAS:
        return
    most = {stable + more for more in MORE_REPLICAS} | {math.ceil(stable * times) for times in TIMES_REPLICAS}
    for waiting in WAITING_PER_REPLICA:
        for replicas in sorted(most):
            setting = operation(replicas, waiting, layout.replicas_per_machine, start)
            yield setting
            if _run(part.traffic, part.service, setting).peak < replicas:
                break  # a higher limit changes nothing


def _is_in_time(part: Demand, setting: Operation) -> bool:
    """Whether few enough clips are late, at the upper end of the interval."""
    if part.slo is None:
        return True
    return _run(part.traffic, part.service_high, setting).latency_sized <= part.slo * (1 + ROUNDING)


def _fleet(demand: Demand, layout: Layout, setting: Operation) -> Fleet:
    part, parts, pools = _part(demand, layout), _parts(demand, layout), layout.pools
    found, worst = (_run(part.traffic, service, setting) for service in (demand.service, demand.service_high))
    spare = layout.spare_machines if demand.slo is not None else 0
    needed = math.ceil(setting.max_replicas * parts - ROUNDING)
    instances = (math.ceil(needed / layout.replicas_per_machine) + spare) * pools
    replicas = instances * layout.replicas_per_machine
    return Fleet(
        replicas=replicas,
        gpus_per_replica=layout.gpus_per_replica,
        instances=instances,
        utilisation=demand.traffic.average_rate * demand.service / replicas,
        wait_p95=found.p95 - demand.service,
        latency_p95=found.p95,
        latency_p99=found.p99,
        needed_replicas=needed * pools,
        spare_instances=spare * pools,
        pools=pools,
        worst_p95=worst.p95,
        is_simulated=True,
        machine_hours=_hours(demand, layout, setting),
        up_hours=found.up_hours,
        cold_share=found.cold_share,
        waiting_per_replica=setting.waiting_per_replica,
    )


def confirm_scaled(demand: Demand, layout: Layout, start: Start, fleet: Fleet) -> Fleet:
    """The fleet that `scaled_fleet` sized, with the number of further runs that miss the target."""
    if demand.slo is None or demand.traffic.given:
        return fleet
    part, setting = _part(demand, layout), _sized(demand, layout, start, fleet)
    limit = demand.slo * (1 + ROUNDING)
    return confirmed(
        fleet, lambda seed: _run(part.traffic, part.service_high, setting, seed).latency_allowed > limit
    )


def latency_again(demand: Demand, layout: Layout, start: Start, fleet: Fleet, seed: int) -> float:
    """p95 of the fleet with other arrivals, at the upper end of the interval and without spare machines."""
    part, setting = _part(demand, layout), _sized(demand, layout, start, fleet)
    return _run(part.traffic, part.service_high, setting, seed).p95


def _sized(demand: Demand, layout: Layout, start: Start, fleet: Fleet) -> Operation:
    """The setting of a fleet that `scaled_fleet` sized."""
    most = math.floor(fleet.needed_replicas / fleet.pools / _parts(demand, layout) + ROUNDING)
    return operation(most, fleet.waiting_per_replica, layout.replicas_per_machine, start)


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
    return replace(
        warm,
        replicas_p99=None,
        wait_p95=p95 - demand.service,
        latency_p95=p95,
        latency_p99=p95,
        warm_replicas=0,
        warm_instances=0,
        spare_instances=spare * layout.pools,
        worst_p95=cold_latency(demand.service_high, start),
        is_simulated=False,
        machine_hours=(machine_hours + up * spare) * layout.pools,
        up_hours=up,
        cold_share=math.exp(-traffic.peak_rate / traffic.batch * stay),
    )


def _parts(demand: Demand, layout: Layout) -> float:
    """How many times the simulated part one pool is; not a whole number, so that cost has no steps."""
    parts = max(1.0, demand.traffic.per_day / layout.pools / MAX_CLIPS_PER_PART)
    return float(math.ceil(parts)) if demand.traffic.given else parts


def _part(demand: Demand, layout: Layout) -> Demand:
    return replace(demand, traffic=per_pool(demand.traffic, layout.pools * _parts(demand, layout)))
