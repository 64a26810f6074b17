"""Replicas for a latency target, at the upper end of the interval and with machines lost."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from filmgate.planner.fleet.queueing import MAX_SERVERS, fewest_servers, wait_percentile
from filmgate.planner.fleet.simulation import latency_percentile, sorted_latencies
from filmgate.planner.fleet.traffic import Traffic

MAX_UTILISATION = 0.85  # in the busiest hour, at the upper end of the interval: capacity to catch up
MAX_SIMULATED_REPLICAS = 400  # a larger fleet has almost no queue; the formula is enough
LATE_MARGIN = 0.9  # of the clips that may be late: the sampling error of a simulated percentile
CONFIRMING_SEEDS = tuple(range(21, 37))  # arrivals that no fleet is sized with
MAX_LATE = 0.05
ROUNDING = 1e-9  # a clip that does not wait may seem to take longer than its service time


@dataclass(frozen=True, slots=True)
class Demand:
    """The clips of a fleet: when they come, how long one takes, and within what time it must be there.

    `service_high` is the upper end of the interval of `service`.
    """

    traffic: Traffic
    service: float
    service_high: float
    slo: float | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How replicas are put on machines.

    `pools` are separate fleets of equal size, one per tenant. `is_machine_shared` says whether two pools may
    have replicas on one machine. `spare_machines` may be lost at once without missing the target.
    `is_empty_when_quiet`: no machine runs in hours without clips, because one can be started in time.
    """

    gpus_per_replica: int = 1
    replicas_per_machine: int = 1
    pools: int = 1
    is_machine_shared: bool = True
    spare_machines: int = 1
    is_empty_when_quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replicas of one machine type, on every GPU of its machines. Waits and latencies are seconds.

    The latency is that of a clip, or of the first token of an answer. `needed_replicas` meet the target at
    the upper end of the interval. `latency_p95` and `latency_p99` are expected with all machines; `worst_p95`
    is at the upper end with the spare machines lost. `late_runs` of `confirming_runs` further simulations of
    that case miss the target.

    A fleet that scales to zero has `machine_hours` per day, all machines together. In `up_hours` of the day
    at least one machine runs; `cold_share` of the clips find none. It runs one replica for each
    `waiting_per_replica` clips that wait.
    """

    replicas: int
    replicas_p99: int | None = None
    gpus_per_replica: int
    instances: int
    utilisation: float
    wait_p95: float
    latency_p95: float
    latency_p99: float
    warm_replicas: int = 0
    warm_instances: int = 0
    needed_replicas: int = 0
    spare_instances: int = 0
    pools: int = 1
    worst_p95: float | None = None
    is_simulated: bool = False
    confirming_runs: int = 0
    late_runs: int = 0
    machine_hours: float | None = None
    up_hours: float = 24.0
    cold_share: float = 0.0
    waiting_per_replica: float = 1.0

    @property
    def is_scaled(self) -> bool:
        """Whether machines start and end with the work."""
        return self.machine_hours is not None

    @property
    def replicas_per_instance(self) -> int:
        return self.replicas // self.instances

    def replicas_of_pool(self, instances: int) -> int:
        """The replicas that each pool may have on this many machines."""
        return instances * self.replicas_per_instance // self.pools

    def can_be_spot(self, instances: int, *, is_machine_shared: bool) -> bool:
        """Whether every pool can have the same replicas on this many spot machines, and the others on demand.

        Each pool keeps a replica on demand, and no machine of either kind is without replicas.
        """
        if not is_machine_shared and instances % self.pools:
            return False
        spot = self.replicas_of_pool(instances)
        steady = self.replicas // self.pools - spot
        needed = [math.ceil(each * self.pools / self.replicas_per_instance) for each in (spot, steady)]
        return steady > 0 and needed == [instances, self.instances - instances]


def machines_of(needed: int, layout: Layout, *, has_target: bool) -> tuple[int, int]:
    """The machines for the replicas that each pool needs, and how many are spare: none without a target.

    Each pool has the spare replicas that a lost machine may take from it: another pool does not lend any.
    """
    machines = _machines(needed, layout)
    spare = layout.spare_machines if has_target else 0
    if layout.is_machine_shared:
        lost = spare * min(needed, layout.replicas_per_machine) if layout.pools > 1 else 0
        total = max(machines + spare, _machines(needed + lost, layout))
    else:
        total = machines + spare * layout.pools
    return total, total - machines


def size_fleet(demand: Demand, layout: Layout, *, is_simulated: bool = True) -> Fleet | None:
    """The smallest fleet that meets the target in the busiest hour, or None if there is none.

    Without `is_simulated` it is sized by formulas, which is much faster.
    """
    traffic = per_pool(demand.traffic, layout.pools)
    demand = replace(demand, traffic=traffic)
    needed = fewest_replicas(demand, 0.95, is_simulated=is_simulated)
    if needed is None or needed * layout.pools > MAX_SERVERS:
        return None
    total, spare = machines_of(needed, layout, has_target=demand.slo is not None)
    replicas = total * layout.replicas_per_machine
    of_pool = max(needed, replicas // layout.pools)
    quiet = total if traffic.busy_hours >= 24 else _quiet_machines(demand, layout)
    p95, p99 = (_latency(demand, of_pool, share, is_simulated=is_simulated) for share in (0.95, 0.99))
    return Fleet(
        replicas=replicas,
        replicas_p99=_replicas_p99(demand, layout),
        gpus_per_replica=layout.gpus_per_replica,
        instances=total,
        utilisation=traffic.average_rate * layout.pools * demand.service / replicas,
        wait_p95=p95 - demand.service,
        latency_p95=p95,
        latency_p99=p99,
        warm_replicas=quiet * layout.replicas_per_machine,
        warm_instances=quiet,
        needed_replicas=needed * layout.pools,
        spare_instances=spare,
        pools=layout.pools,
        worst_p95=worst_latency(demand, needed, is_simulated=is_simulated),
        is_simulated=is_simulated and needed <= MAX_SIMULATED_REPLICAS,
    )


def fewest_replicas(demand: Demand, share: float, *, is_simulated: bool) -> int | None:
    """The fewest replicas of one pool, at the upper end of the interval."""
    traffic, service, slo = demand.traffic, demand.service_high, demand.slo
    stable = max(1, math.ceil(traffic.peak_rate * service / MAX_UTILISATION))
    if slo is None:
        return stable
    if service > slo:
        return None

    target = slo * (1 + ROUNDING)
    stricter = 1 - (1 - share) * LATE_MARGIN

    def is_quick(replicas: int) -> bool:
        return (
            wait_percentile(traffic.peak_rate, service, replicas, stricter, traffic.batch) <= target - service
        )

    def is_quick_when_simulated(replicas: int) -> bool:
        return latency_percentile(traffic, service, replicas, stricter) <= target

    found = stable if is_quick(stable) else fewest_servers(is_quick, stable)
    if found is None or not is_simulated or found > MAX_SIMULATED_REPLICAS:
        return found
    while found > stable and is_quick_when_simulated(found - 1):
        found -= 1
    while not is_quick_when_simulated(found):
        found += 1
        if found > MAX_SERVERS:
            return None
    return found


def worst_latency(demand: Demand, replicas: int, *, is_simulated: bool = True) -> float:
    """p95 at the upper end of the interval when only `replicas` of one pool are left."""
    high = replace(demand, service=demand.service_high)
    return _latency(high, replicas, 0.95, is_simulated=is_simulated)


def confirm(fleet: Fleet, demand: Demand) -> Fleet:
    """The fleet with the number of further simulations that miss the target although the sizing met it."""
    if demand.slo is None or demand.traffic.given or not fleet.is_simulated:
        return fleet
    traffic, limit = per_pool(demand.traffic, fleet.pools), demand.slo * (1 + ROUNDING)
    left = fleet.needed_replicas // fleet.pools

    def is_late(seed: int) -> bool:
        ordered = sorted_latencies(traffic, demand.service_high, left, (seed,))
        return 1 - bisect_right(ordered, limit) / len(ordered) > MAX_LATE

    return confirmed(fleet, is_late)


def confirmed(fleet: Fleet, is_late: Callable[[int], bool]) -> Fleet:
    """The fleet with the number of confirming runs that are late."""
    late = sum(is_late(seed) for seed in CONFIRMING_SEEDS)
    return replace(fleet, confirming_runs=len(CONFIRMING_SEEDS), late_runs=late)


def _latency(demand: Demand, replicas: int, share: float, *, is_simulated: bool) -> float:
    traffic, service = demand.traffic, demand.service
    if is_simulated and replicas <= MAX_SIMULATED_REPLICAS:
        return latency_percentile(traffic, service, replicas, share)
    return service + wait_percentile(traffic.peak_rate, service, replicas, share, traffic.batch)


def per_pool(traffic: Traffic, pools: float) -> Traffic:
    """The equal share of one pool."""
    return replace(traffic, per_day=traffic.per_day / pools, given=traffic.given[:: max(1, int(pools))])


def _machines(replicas: int, layout: Layout) -> int:
    if layout.is_machine_shared:
        return math.ceil(replicas * layout.pools / layout.replicas_per_machine)
    return math.ceil(replicas / layout.replicas_per_machine) * layout.pools


def _quiet_machines(demand: Demand, layout: Layout) -> int:
    """Machines outside the busy hours: none without a target, one per pool or for all pools with one."""
    return 0 if demand.slo is None or layout.is_empty_when_quiet else _machines(1, layout)


def _replicas_p99(demand: Demand, layout: Layout) -> int | None:
    if demand.slo is None:
        return None
    found = fewest_replicas(demand, 0.99, is_simulated=False)
    return found * layout.pools if found is not None else None
