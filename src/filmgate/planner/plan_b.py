"""Plan B: what to do when the decision cannot be bought. The ways that clips and language models share."""

from collections.abc import Iterable, Sequence

from filmgate.planner.fleet.answer import Alternative
from filmgate.planner.llm.serving import LlmCandidate
from filmgate.planner.report.numbers import counted
from filmgate.planner.video.candidates import Candidate

Runnable = Candidate | LlmCandidate


def missing(name: str, note: str) -> Alternative:
    """A way that does not exist here, and why."""
    return Alternative(name, "none", None, None, note)


def another_machine(best: Runnable, others: Iterable[Runnable]) -> Alternative:
    """The first of the others, which have another GPU. Its time is that of a clip, or between two tokens."""
    other = next(iter(others), None)
    if other is None:
        return missing("another machine", f"only {best.machine.gpu.name} meets the requirements")
    note = counted(other.fleet.instances if other.fleet else 1, "machine")
    return Alternative("another machine", other.machine.name, other.seconds, other.usd_per_month, note)


def another_region(found: Sequence[tuple[Runnable, str]], law: str, moved: str) -> Alternative:
    """The cheapest of these machines in other regions of the jurisdiction."""
    if not found:
        return missing(
            "another region", f"no other region in {law} has a machine that meets the requirements"
        )
    one, region = min(found, key=lambda pair: pair[0].usd_per_unit or 0.0)
    what, note = f"{one.machine.name} in {region}", f"also in {law}; {moved} move there"
    return Alternative("another region", what, one.seconds, one.usd_per_month, note)
