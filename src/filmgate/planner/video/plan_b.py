"""Plan B of a video plan, and what other software runs and Filmgate does not."""

from collections.abc import Sequence
from dataclasses import replace

from filmgate.catalog.calibrations import Calibration
from filmgate.catalog.catalog import Catalog
from filmgate.planner.answer import Rejected
from filmgate.planner.fleet.answer import Alternative, ClipQuote, cheapest
from filmgate.planner.fleet.money import DAYS_PER_MONTH
from filmgate.planner.fleet.pattern import Choice, Pattern
from filmgate.planner.machines import machines_for, prices_elsewhere
from filmgate.planner.plan_b import another_machine, another_region, missing
from filmgate.planner.report.numbers import usd
from filmgate.planner.video.candidates import Candidate, evaluate, rank, size
from filmgate.planner.video.question import VideoQuestion
from filmgate.planner.video.splits import try_split


def plan_b(
    candidates: Sequence[Candidate],
    choice: Choice,
    quotes: Sequence[ClipQuote],
    catalog: Catalog,
    calibration: Calibration,
) -> tuple[Alternative, ...]:
    """The second machine, another region under the same law, fewer steps, and the provider or a fleet."""
    best = candidates[0]
    gpu = best.machine.gpu.name
    found = [another_machine(best, (one for one in candidates if one.machine.gpu.name != gpu))]
    if best.machine.instance is not None:
        law = catalog.region(best.question.region).jurisdiction
        elsewhere = _elsewhere(best, law, catalog, calibration)
        found.append(another_region(elsewhere, law, "clips and weights"))
    if best.question.clip.steps > 1:
        found.append(_fewer_steps(best, calibration))
    if choice.pattern is Pattern.MANAGED:
        return (_own_fleet(best), *found)
    return (*found, _provider(best.question, quotes))


def not_with_filmgate(best: Candidate, calibration: Calibration) -> tuple[Alternative, ...]:
    """Ways that other software runs and Filmgate does not, each with its time."""
    question, runtime, found = best.question, best.question.runtime, []
    if not runtime.can_split_clips and best.machine.gpus > 1:
        gpus = min(best.machine.gpus, 8)
        if split := try_split(question, best.machine, gpus, calibration):
            note = "Filmgate renders a clip on one GPU"
            found.append(Alternative(f"a clip on {gpus} GPUs", best.machine.name, split.seconds, None, note))
    if "fp8" not in runtime.weight_precisions and best.machine.gpu.fp8_tflops:
        split = try_split(replace(question, precision="fp8"), best.machine, 1, calibration)
        if split:
            note = "Filmgate computes in bf16; check the quality of software that computes in fp8"
            found.append(Alternative("denoiser in fp8", best.machine.name, split.seconds, None, note))
    return tuple(found)


def _own_fleet(best: Candidate) -> Alternative:
    fleet, each = best.fleet, best.usd_per_unit
    what = f"{fleet.instances} x {best.machine.name}" if fleet else best.machine.name
    note = f"{usd(each)} per clip" if each is not None else ""
    return Alternative("your own fleet", what, best.seconds, best.usd_per_month, note)


def _elsewhere(
    best: Candidate, law: str, catalog: Catalog, calibration: Calibration
) -> list[tuple[Candidate, str]]:
    """The same machine in other regions of the jurisdiction, or the best machine of each."""
    question = best.question
    same = [(best.at(p), p.region) for p in prices_elsewhere(best.machine, question.region, catalog)]
    if same:
        return same
    others = [r.name for r in catalog.regions.values() if r.jurisdiction == law and r.name != question.region]
    ranked = [(_candidates(replace(question, region=name), catalog, calibration), name) for name in others]
    return [(candidates[0], name) for candidates, name in ranked if candidates]


def _candidates(question: VideoQuestion, catalog: Catalog, calibration: Calibration) -> list[Candidate]:
    machines, _ = machines_for(catalog, question.region, names=question.instances)
    outcomes = [evaluate(question, machine, calibration) for machine in machines]
    return rank([o for o in outcomes if not isinstance(o, Rejected)])


def _fewer_steps(best: Candidate, calibration: Calibration) -> Alternative:
    question = best.question
    steps = question.clip.steps // 2
    fewer = replace(question, clip=replace(question.clip, steps=steps))
    split = try_split(fewer, best.machine, best.split.gpus, calibration)
    sized = size(Candidate(fewer, best.machine, split), is_simulated=True) if split else None
    what = f"{steps} steps instead of {question.clip.steps}"
    seconds, monthly = (sized.seconds, sized.usd_per_month) if sized else (None, None)
    note = "lower quality, or a distilled model; compare clips first"
    return Alternative("fewer steps", what, seconds, monthly, note)


def _provider(question: VideoQuestion, quotes: Sequence[ClipQuote]) -> Alternative:
    quote, traffic = cheapest(quotes), question.traffic
    if quote is None:
        note = "; ".join(f"{q.name}: {q.note.split(';')[0]}" for q in quotes if q.state == "active")
        return missing("the provider", note or "no active API in the catalog")
    monthly = quote.usd_per_clip * traffic.per_day * DAYS_PER_MONTH if traffic else None
    note = f"{usd(quote.usd_per_clip)} per clip; another model"
    return Alternative("the provider", quote.name, quote.typical_seconds, monthly, note)
