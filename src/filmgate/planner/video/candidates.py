"""The machines that can render the clip, with the fleet and the cost of each."""

import math
from dataclasses import dataclass, replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.gpus import GIB
from filmgate.catalog.instances import Price
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.money import Bill
from filmgate.planner.fleet.pattern import Pattern
from filmgate.planner.fleet.purchase import Order
from filmgate.planner.fleet.queueing import MAX_SERVERS
from filmgate.planner.fleet.scaled import (
    Start,
    confirm_scaled,
    estimated_fleet,
    is_cold_clip_in_time,
    scaled_fleet,
)
from filmgate.planner.fleet.sizing import Demand, Fleet, Layout, confirm, size_fleet
from filmgate.planner.fleet.starts import Startup, restart_seconds, start_seconds
from filmgate.planner.fleet.tenancy import Tenancy
from filmgate.planner.fleet.traffic import Traffic
from filmgate.planner.machines import Machine
from filmgate.planner.video.clip_time import tries_fast_decoder
from filmgate.planner.video.memory import Placement, first_fit, offloaded_bytes, weight_bytes
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.splits import HOST_RESERVE_GIB, Split, try_split

SCREEN_ERROR = 0.25  # the formulas never size a fleet by more than this share above the simulation
MIN_HOURS_AT_ZERO = 2.4  # per day, for the name of the pattern
SCALED_ERROR = 0.3  # the same for a fleet that scales to zero


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine and a split that meet the requirements, and how the fleet is run."""

    machine: Machine
    split: Split
    fleet: Fleet | None
    bill: Bill | None
    pattern: Pattern = Pattern.WARM

    @property
    def seconds(self) -> float:
        return self.split.seconds

    @property
    def usd_per_busy_clip(self) -> float | None:
        """The cost of a clip on a machine that is always busy."""
        hourly = self.machine.usd_per_hour
        if hourly is None:
            return None
        return hourly / 3600 * self.seconds * self.split.gpus / self.machine.gpus

    def usd_per_clip(self, question: VideoQuestion) -> float | None:
        traffic = question.traffic()
        if self.bill and traffic:
            return self.bill.usd_per_unit(traffic.per_day)
        return self.usd_per_busy_clip


def evaluate(question: VideoQuestion, machine: Machine, calibration: Calibration) -> Candidate | Rejected:
    """The cheapest way to run one machine, sized by formulas, or why it does not meet the requirements."""
    counts = [n for n in (1, 2, 4, 8) if n <= machine.gpus]
    splits = [s for gpus in counts if (s := try_split(question, machine, gpus, calibration))]
    runnable = [s for s in splits if s.gpus == 1 or question.runtime.can_split_clips]
    if not runnable:
        return _too_small(question, machine)
    slo = question.slo_seconds
    quick = [split for split in runnable if slo is None or split.high <= slo]
    if not quick:
        return _too_slow(machine, runnable, splits, slo or 0.0)
    candidates = [size(question, machine, split, is_simulated=False) for split in quick]
    sized = [c for c in candidates if c.fleet is not None or question.traffic() is None]
    if not sized:
        traffic = question.traffic()
        volume = traffic.per_day if traffic else 0.0
        reason = f"{volume:g} clips per day need more than {MAX_SERVERS} replicas"
        return Rejected(machine.name, reason, volume, None, "clips/day")
    return min(sized, key=lambda c: (c.usd_per_clip(question) or 0.0, c.seconds))


def decide(question: VideoQuestion, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, cheapest first. Every one that could be the cheapest is sized by simulation."""
    ranked = rank(question, candidates)
    if question.traffic() is None:
        return ranked
    found: list[Candidate] = []
    best = math.inf
    for candidate in ranked:
        screen = candidate.usd_per_clip(question)
        error = SCALED_ERROR if candidate.fleet and candidate.fleet.is_scaled else SCREEN_ERROR
        if screen is not None and screen * (1 - error) > best:
            found.append(candidate)
            continue
        exact = size(question, candidate.machine, candidate.split, is_simulated=True)
        if exact.fleet is not None:
            found.append(exact)
            best = min(best, exact.usd_per_clip(question) or math.inf)
    return rank(question, found)


def confirmed_candidate(question: VideoQuestion, candidate: Candidate) -> Candidate:
    """The candidate with the number of further simulations that miss the target."""
    fleet = candidate.fleet
    if fleet is None:
        return candidate
    demand = demand_of(question, candidate.split)
    if not fleet.is_scaled:
        return replace(candidate, fleet=confirm(fleet, demand))
    layout = layout_of(question, candidate.machine, candidate.split)
    start = start_of(question, candidate.machine, candidate.split)
    return replace(candidate, fleet=confirm_scaled(demand, layout, start, fleet))


def rank(question: VideoQuestion, candidates: list[Candidate]) -> list[Candidate]:
    """Cheapest clip first. Machines without a price come last, fastest first."""
    return sorted(candidates, key=lambda c: (c.usd_per_clip(question) or math.inf, c.seconds))


def size(question: VideoQuestion, machine: Machine, split: Split, *, is_simulated: bool) -> Candidate:
    """The fleet of this machine and its bill: warm, or scaled to zero where that is in time and cheaper."""
    traffic = question.traffic()
    if traffic is None:
        return Candidate(machine, split, None, None)
    demand, layout = demand_of(question, split), layout_of(question, machine, split)
    fleet = size_fleet(demand, layout, is_simulated=is_simulated)
    if fleet is None:
        return Candidate(machine, split, None, None)
    pattern = Pattern.WARM if fleet.warm_instances == fleet.instances else Pattern.SCHEDULED
    warm = _priced(question, Candidate(machine, split, fleet, None, pattern))
    if not question.runtime.can_scale_to_zero:
        return warm
    start = start_of(question, machine, split)
    scaled = estimated_fleet(demand, layout, start, fleet)
    if scaled and is_simulated and _is_near(question, warm, scaled):
        scaled = scaled_fleet(demand, layout, start)
    if scaled is None:
        return warm
    pattern = Pattern.QUEUE if scaled.up_hours <= 24 - MIN_HOURS_AT_ZERO else Pattern.AUTOSCALED
    return _cheaper(warm, _priced(question, replace(warm, fleet=scaled, pattern=pattern)))


def _is_near(question: VideoQuestion, warm: Candidate, scaled: Fleet) -> bool:
    """Whether a fleet that was estimated could cost less than the warm one."""
    estimate = _bill(question, warm.machine, warm.split, scaled)
    if estimate is None or warm.bill is None:
        return False
    return estimate.usd_per_day * (1 - SCALED_ERROR) < warm.bill.usd_per_day


def _cheaper(warm: Candidate, scaled: Candidate) -> Candidate:
    """The cheaper way to run a machine; warm where neither has a price."""
    if warm.bill is None or scaled.bill is None:
        return warm
    return scaled if scaled.bill.usd_per_day < warm.bill.usd_per_day else warm


def _priced(question: VideoQuestion, candidate: Candidate) -> Candidate:
    if candidate.fleet is None:
        return candidate
    return replace(candidate, bill=_bill(question, candidate.machine, candidate.split, candidate.fleet))


def demand_of(question: VideoQuestion, split: Split, traffic: Traffic | None = None) -> Demand:
    found = traffic or question.traffic()
    assert found is not None, "only a question with a volume has a fleet"
    return Demand(found, split.seconds, split.high, question.slo_seconds)


def layout_of(question: VideoQuestion, machine: Machine, split: Split) -> Layout:
    is_shared = question.tenancy is Tenancy.SHARED
    return Layout(
        gpus_per_replica=split.gpus,
        replicas_per_machine=machine.gpus // split.gpus,
        pools=1 if is_shared else question.tenants,
        is_machine_shared=question.tenancy is not Tenancy.INSTANCE,
        spare_machines=question.spare_machines,
        is_empty_when_quiet=question.runtime.can_scale_to_zero
        and is_cold_clip_in_time(demand_of(question, split), start_of(question, machine, split)),
    )


def startup_of(question: VideoQuestion, machine: Machine, split: Split) -> Startup:
    """What a new replica of this machine loads and compiles."""
    software = question.software(split.fit.placement.offload)
    has_kernels = tries_fast_decoder(question.model, machine.gpu, software)
    weights = weight_bytes(question.model, question.precision)
    return Startup(weights, software.mode == "compiled", has_kernels)


def new_replica_seconds(question: VideoQuestion, machine: Machine, split: Split) -> float:
    """Seconds until a replica on a new node accepts work."""
    return start_seconds(startup_of(question, machine, split), machine.instance, machine.gpu)


def start_of(question: VideoQuestion, machine: Machine, split: Split) -> Start:
    """The start of a replica, on a new machine and on one that is there."""
    startup = startup_of(question, machine, split)
    return Start(
        start_seconds(startup, machine.instance, machine.gpu),
        restart_seconds(startup, machine.instance, machine.gpu),
    )


def order_of(question: VideoQuestion, machine: Machine, split: Split, fleet: Fleet) -> Order | None:
    """What has to be bought; None without a volume or a price."""
    traffic, price = question.traffic(), machine.price
    if traffic is None or price is None or price.on_demand is None:
        return None
    return Order(fleet, traffic, price, split.seconds, new_replica_seconds(question, machine, split))


def _bill(question: VideoQuestion, machine: Machine, split: Split, fleet: Fleet) -> Bill | None:
    order = order_of(question, machine, split, fleet)
    return order.bill(question.terms) if order else None


def with_price(question: VideoQuestion, candidate: Candidate, price: Price) -> Candidate:
    """The same fleet where the machine has another price."""
    machine = replace(candidate.machine, price=price)
    if candidate.fleet is None:
        return replace(candidate, machine=machine)
    cost = _bill(question, machine, candidate.split, candidate.fleet)
    return replace(candidate, machine=machine, bill=cost)


def daily_cost(question: VideoQuestion, candidate: Candidate, clips_per_day: float) -> float | None:
    """USD per day of the same machine and split at another volume, sized by formulas."""
    again = replace(question, clips_per_day=clips_per_day, arrivals=())
    sized = size(again, candidate.machine, candidate.split, is_simulated=False)
    return sized.bill.usd_per_day if sized.bill else None


def _too_slow(machine: Machine, runnable: list[Split], splits: list[Split], slo: float) -> Rejected:
    best = min(runnable, key=lambda split: split.high)
    reason = f"a clip takes {best.seconds:.0f} s, up to {best.high:.0f} s, and the SLO is {slo:g} s"
    quicker = next((s for s in splits if s.high <= slo), None)
    if quicker:
        reason += f"; {quicker.gpus} GPUs would take {quicker.seconds:.0f} s, which Filmgate does not run"
    return Rejected(machine.name, reason, best.high, slo, "s")


def _too_small(question: VideoQuestion, machine: Machine) -> Rejected:
    """The memory that the smallest placement needs and the GPU or the host lacks."""
    model = question.model
    smallest = Placement(weights=question.precision, offload="layers", is_tiled=True)
    fit = first_fit(model, question.clip, smallest, math.inf, question.safety_factor)
    need = fit.memory.peak_bytes if fit else math.inf
    have = machine.gpu.memory_bytes / question.budget_margin
    if need <= have and machine.instance:
        host = offloaded_bytes(model, smallest) * machine.gpus / GIB
        ram = machine.instance.ram_gib
        free = ram - HOST_RESERVE_GIB
        reason = f"offloading needs {host:.0f} GiB of host memory, {free:g} of {ram:g} GiB are free for it"
        return Rejected(machine.name, reason, host, ram, "GiB")
    stage = fit.memory.peak_stage if fit else "denoise"
    margin = f" after a margin of {question.budget_margin:g}" if question.budget_margin > 1 else ""
    held = f"{machine.gpu.name} has {have / GIB:.1f} GiB{margin}"
    reason = f"{stage} needs {need / GIB:.1f} GiB per GPU even offloaded and tiled, {held}"
    return Rejected(machine.name, reason, need / GIB, have / GIB, "GiB")
