"""Plan B: what to do when the decision cannot be bought, with the time and cost of each way."""

from collections.abc import Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.answer import Alternative, ClipQuote
from filmgate.planner.fleet.money import DAYS_PER_MONTH
from filmgate.planner.machines import machines_for, prices_elsewhere
from filmgate.planner.report.numbers import counted
from filmgate.planner.video.candidates import Candidate, evaluate, rank, size
from filmgate.planner.video.cost import cheapest
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.splits import try_split


def plan_b(
    candidates: Sequence[Candidate],
    quotes: Sequence[ClipQuote],
    catalog: Catalog,
    calibration: Calibration,
) -> tuple[Alternative, ...]:
    """The second machine, another region under the same law, fewer steps, and the provider."""
    best = candidates[0]
    found = [_second(candidates), _fewer_steps(best, calibration), _provider(best.question, quotes)]
    if best.machine.instance is not None:
        found.insert(1, _other_region(best, catalog, calibration))
    return tuple(found)


def not_with_filmgate(best: Candidate, calibration: Calibration) -> tuple[Alternative, ...]:
    """Ways that other software runs and Filmgate does not, each with its time and cost."""
    question, runtime, found = best.question, best.question.runtime, []
    if not runtime.can_split_clips and best.machine.gpus > 1:
        gpus = min(best.machine.gpus, 8)
        if split := try_split(question, best.machine, gpus, calibration):
            note = "the runtime renders a clip on one GPU"
            found.append(Alternative(f"a clip on {gpus} GPUs", best.machine.name, split.seconds, None, note))
    if "fp8" not in runtime.weight_precisions and best.machine.gpu.fp8_tflops:
        split = try_split(replace(question, precision="fp8"), best.machine, 1, calibration)
        if split:
            note = "the runtime has no quantised weights; check the quality of another one"
            found.append(Alternative("denoiser in fp8", best.machine.name, split.seconds, None, note))
    return tuple(found)


def _monthly(candidate: Candidate | None) -> float | None:
    return candidate.bill.usd_per_month if candidate and candidate.bill else None


def _second(candidates: Sequence[Candidate]) -> Alternative:
    best = candidates[0].machine
    other = next((c for c in candidates if c.machine.gpu.name != best.gpu.name), None)
    if other is None:
        return Alternative("another machine", "none", None, None, f"only {best.gpu.name} meets the question")
    note = counted(other.fleet.instances, "machine") if other.fleet else "per clip when busy"
    return Alternative("another machine", other.machine.name, other.seconds, _monthly(other), note)


def _other_region(best: Candidate, catalog: Catalog, calibration: Calibration) -> Alternative:
    """The cheapest region of the same jurisdiction that has the machine, or another machine there."""
    question, law = best.question, catalog.region(best.question.region).jurisdiction
    found = [
        (replace(best, machine=replace(best.machine, price=price)).priced(), price.region)
        for price in prices_elsewhere(best.machine, question.region, catalog)
    ]
    if not found:
        found = [
            (ranked[0], r.name)
            for r in catalog.regions.values()
            if r.jurisdiction == law
            and r.name != question.region
            and (ranked := _candidates(replace(question, region=r.name), catalog, calibration))
        ]
    if not found:
        note = f"no other region in {law} has a machine in the catalog that meets the question"
        return Alternative("another region", "none", None, None, note)
    cheapest_one, region = min(found, key=lambda pair: pair[0].usd_per_clip or 0.0)
    note = f"also in {law}; clips and weights move there"
    what = f"{cheapest_one.machine.name} in {region}"
    return Alternative("another region", what, cheapest_one.seconds, _monthly(cheapest_one), note)


def _candidates(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> list[Candidate]:
    machines, _ = machines_for(catalog, question.region, names=question.instances)
    outcomes = [evaluate(question, machine, calibration) for machine in machines]
    return rank([o for o in outcomes if not isinstance(o, Rejected)])


def _fewer_steps(best: Candidate, calibration: Calibration) -> Alternative:
    question = best.question
    steps = max(1, question.clip.steps // 2)
    fewer = replace(question, clip=replace(question.clip, steps=steps))
    split = try_split(fewer, best.machine, best.split.gpus, calibration)
    sized = size(Candidate(fewer, best.machine, split), is_simulated=False) if split else None
    what = f"{steps} steps instead of {question.clip.steps}"
    seconds = split.seconds if split else None
    note = "lower quality, or a distilled model; compare clips first"
    return Alternative("fewer steps", what, seconds, _monthly(sized), note)


def _provider(question: VideoQuestion, quotes: Sequence[ClipQuote]) -> Alternative:
    quote, traffic = cheapest(quotes), question.traffic
    if quote is None:
        note = "; ".join(f"{q.name}: {q.note.split(';')[0]}" for q in quotes if q.state == "active")
        return Alternative("the provider", "none", None, None, note or "no active API in the catalog")
    usd = quote.usd_per_clip * traffic.per_day * DAYS_PER_MONTH if traffic else None
    note = f"${quote.usd_per_clip:.2f} per clip; another model"
    return Alternative("the provider", quote.name, quote.typical_seconds, usd, note)
