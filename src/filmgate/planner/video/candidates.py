"""The machines that can render the clip, with the fleet and the cost of each."""

import math
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import GIB
from filmgate.catalog.instances import Price
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.money import Bill, Order
from filmgate.planner.fleet.pattern import Pattern
from filmgate.planner.fleet.queueing import MAX_SERVERS
from filmgate.planner.fleet.scaled import (
    confirm_scaled,
    estimated_fleet,
    is_cold_clip_in_time,
    scaled_fleet,
)
from filmgate.planner.fleet.sizing import Demand, Fleet, Layout, confirm, size_fleet
from filmgate.planner.fleet.starts import COMPILE_SECONDS, KERNEL_SECONDS, ColdStart, Start, cold_starts
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import traffic_of
from filmgate.planner.machines import Machine
from filmgate.planner.report.numbers import digits
from filmgate.planner.video.clip_time import tries_fast_decoder
from filmgate.planner.video.memory import Placement, budget, offloaded_bytes, stored_bytes
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.splits import HOST_RESERVE_GIB, Split, try_split

SCREEN_ERROR = 0.25  # the formulas never size a fleet by more than this share above the simulation
MIN_HOURS_AT_ZERO = 2.4  # per day, for the name of the pattern
SCALED_ERROR = 0.5  # the same for a fleet that scales to zero


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine and a split that meet the requirements of a question, and how the fleet is run."""

    question: VideoQuestion
    machine: Machine
    split: Split
    fleet: Fleet | None = None
    bill: Bill | None = None
    pattern: Pattern = Pattern.WARM

    @property
    def seconds(self) -> float:
        return self.split.seconds

    @property
    def usd_per_unit(self) -> float | None:
        """The cost of a clip: that of the bill, or that on a machine that is always busy."""
        traffic, hourly = self.question.traffic, self.machine.usd_per_hour
        if self.bill and traffic:
            return self.bill.usd_per_unit(traffic.per_day)
        if hourly is None:
            return None
        return hourly / 3600 * self.seconds * self.split.gpus / self.machine.gpus

    @property
    def usd_per_month(self) -> float | None:
        return self.bill.usd_per_month if self.bill else None

    @property
    def demand(self) -> Demand:
        traffic = self.question.traffic
        assert traffic is not None, "only a question with a volume has a fleet"
        return Demand(traffic, self.seconds, self.split.high, self.question.slo_seconds)

    @property
    def layout(self) -> Layout:
        question = self.question
        return Layout(
            gpus_per_replica=self.split.gpus,
            replicas_per_machine=self.machine.gpus // self.split.gpus,
            pools=1 if question.tenancy is Tenancy.SHARED else question.tenants,
            is_machine_shared=question.tenancy is not Tenancy.INSTANCE,
            spare_machines=question.spare_machines,
            is_empty_when_quiet=question.runtime.can_scale_to_zero
            and is_cold_clip_in_time(self.demand, self.start),
        )

    @property
    def cold_starts(self) -> tuple[ColdStart, ...]:
        question, gpu = self.question, self.machine.gpu
        software = question.software(self.split.fit.placement.offload)
        build_seconds = COMPILE_SECONDS if software.mode == "compiled" else 0.0
        if tries_fast_decoder(question.model, gpu, software):
            build_seconds += KERNEL_SECONDS
        return cold_starts(stored_bytes(question.model), self.machine.instance, gpu, build_seconds)

    @property
    def start(self) -> Start:
        return Start.slowest(self.cold_starts)

    @property
    def order(self) -> Order | None:
        """What has to be bought; None without a fleet or a price."""
        price = self.machine.price
        if self.fleet is None or price is None or price.on_demand is None:
            return None
        return Order(
            self.fleet,
            self.demand.traffic,
            price,
            self.seconds,
            self.start.new_machine,
            self.layout.is_machine_shared,
        )

    def at(self, price: Price) -> "Candidate":
        """The same fleet at the price of another region."""
        return replace(self, machine=replace(self.machine, price=price)).priced()

    def priced(self) -> "Candidate":
        """With the bill of its fleet."""
        order = self.order
        return replace(self, bill=order.bill(self.question.terms) if order else None)


def evaluate(question: VideoQuestion, machine: Machine, calibration: Calibration) -> Candidate | Rejected:
    """The cheapest way to run one machine, sized by formulas, or why it does not meet the requirements."""
    counts = [n for n in (1, 2, 4, 8) if n <= machine.gpus]
    splits = [s for gpus in counts if (s := try_split(question, machine, gpus, calibration))]
    runnable = [s for s in splits if s.gpus == 1 or question.runtime.can_split_clips]
    if not runnable:
        return _too_small(question, machine)
    slo, traffic = question.slo_seconds, question.traffic
    quick = [split for split in runnable if slo is None or split.high <= slo]
    if not quick:
        return _too_slow(machine, runnable, splits, slo or 0.0)
    candidates = [size(Candidate(question, machine, split), is_simulated=False) for split in quick]
    sized = [c for c in candidates if c.fleet is not None or traffic is None]
    if not sized:
        return _too_many(candidates[0])
    return min(sized, key=lambda c: (c.usd_per_unit or 0.0, c.seconds))


def decide(candidates: list[Candidate]) -> tuple[list[Candidate], list[Rejected]]:
    """The candidates, cheapest first, and the rejections of those that the simulation finds too small.

    Every candidate that could be the cheapest is sized by simulation.
    """
    found: list[Candidate] = []
    rejected: list[Rejected] = []
    best = math.inf
    for candidate in rank(candidates):
        screen, fleet = candidate.usd_per_unit, candidate.fleet
        error = SCALED_ERROR if fleet and fleet.is_scaled else SCREEN_ERROR
        if fleet is None or (screen is not None and screen * (1 - error) > best):
            found.append(candidate)
            continue
        exact = size(candidate, is_simulated=True)
        if exact.fleet is None:
            rejected.append(_too_many(candidate))
            continue
        found.append(exact)
        best = min(best, exact.usd_per_unit or math.inf)
    return rank(found), rejected


def confirmed_candidate(one: Candidate) -> Candidate:
    """The candidate with the number of further simulations that miss the target."""
    if one.fleet is None:
        return one
    if not one.fleet.is_scaled:
        return replace(one, fleet=confirm(one.fleet, one.demand))
    return replace(one, fleet=confirm_scaled(one.demand, one.layout, one.start, one.fleet))


def rank(candidates: list[Candidate]) -> list[Candidate]:
    """Cheapest clip first. Machines without a price come last, fastest first."""
    return sorted(candidates, key=lambda c: (c.usd_per_unit or math.inf, c.seconds))


def size(one: Candidate, *, is_simulated: bool) -> Candidate:
    """The candidate with its fleet and its bill: warm, or scaled to zero where that is in time and cheaper.

    It has no fleet if the question has no volume or too much of it.
    """
    one = replace(one, fleet=None, bill=None, pattern=Pattern.WARM)
    if one.question.traffic is None:
        return one
    demand, layout = one.demand, one.layout
    fleet = size_fleet(demand, layout, is_simulated=is_simulated)
    if fleet is None:
        return one
    pattern = Pattern.WARM if fleet.warm_instances == fleet.instances else Pattern.SCHEDULED
    warm = replace(one, fleet=fleet, pattern=pattern).priced()
    if not one.question.runtime.can_scale_to_zero:
        return warm
    scaled = estimated_fleet(demand, layout, one.start, fleet)
    if scaled and is_simulated and _is_near(warm, scaled):
        scaled = scaled_fleet(demand, layout, one.start)
    if scaled is None:
        return warm
    pattern = Pattern.QUEUE if scaled.up_hours <= 24 - MIN_HOURS_AT_ZERO else Pattern.AUTOSCALED
    from_zero = replace(warm, fleet=scaled, pattern=pattern).priced()
    # The first of equal ones: warm where neither has a price.
    return min(warm, from_zero, key=lambda way: way.bill.usd_per_day if way.bill else 0.0)


def _is_near(warm: Candidate, scaled: Fleet) -> bool:
    """Whether a fleet that was estimated could cost less than the warm one."""
    estimate = replace(warm, fleet=scaled).priced().bill
    if estimate is None or warm.bill is None:
        return False
    return estimate.usd_per_day * (1 - SCALED_ERROR) < warm.bill.usd_per_day


def daily_cost(candidate: Candidate, clips_per_day: float) -> float | None:
    """USD per day of the same machine and split at another volume, sized by formulas."""
    traffic = candidate.question.traffic
    again = replace(candidate.question, traffic=traffic_of(clips_per_day, traffic.shape if traffic else None))
    sized = size(replace(candidate, question=again), is_simulated=False)
    return sized.bill.usd_per_day if sized.bill else None


def _too_slow(machine: Machine, runnable: list[Split], splits: list[Split], slo: float) -> Rejected:
    best = min(runnable, key=lambda split: split.high)
    reason = f"a clip takes {digits(best.seconds)} s, up to {digits(best.high)} s; the SLO is {slo:g} s"
    quicker = next((s for s in splits if s.high <= slo), None)
    if quicker:
        split = f"on {quicker.gpus} GPUs it would take {digits(quicker.seconds)} s"
        reason += f"; {split}, but Filmgate renders a clip on one GPU"
    return Rejected(machine.name, reason, best.high, slo, "s")


def _too_many(one: Candidate) -> Rejected:
    volume = one.demand.traffic.per_day
    reason = f"{volume:,.0f} clips per day need more than {MAX_SERVERS} replicas"
    return Rejected(one.machine.name, reason, volume, None, "clips/day")


def _too_small(question: VideoQuestion, machine: Machine) -> Rejected:
    """The memory that the smallest placement needs and the GPU or the host lacks."""
    model = question.model
    smallest = Placement(weights=question.precision, offload="layers", is_tiled=True)
    memory = budget(model, question.clip, smallest, question.safety_factor)
    need, have = memory.peak_bytes, machine.gpu.memory_bytes / question.budget_margin
    if need <= have and machine.instance:
        host = offloaded_bytes(model, smallest) * machine.gpus / GIB
        ram = machine.instance.ram_gib
        free = ram - HOST_RESERVE_GIB
        reason = f"offloading needs {host:.0f} GiB of host memory; {free:g} of {ram:g} GiB are free"
        return Rejected(machine.name, reason, host, free, "GiB")
    margin = f" after a margin of {question.budget_margin:g}" if question.budget_margin > 1 else ""
    held = f"{machine.gpu.name} has {have / GIB:.1f} GiB{margin}"
    reason = f"{memory.peak_stage} needs {need / GIB:.1f} GiB per GPU even offloaded and tiled; {held}"
    return Rejected(machine.name, reason, need / GIB, have / GIB, "GiB")
