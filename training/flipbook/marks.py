"""What was asked against what the judge saw: marks, and the table they add up to."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.flipbook.judge import Verdict
from training.flipbook.prompts import Question

# What the model has to reach, in per cent. The other marks are reported only.
TARGETS = {"colour": 95.0, "motion": 90.0, "setting": 95.0, "both present": 80.0}


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked, and what the judge saw."""

    question: Question
    verdict: Verdict

    def score(self) -> dict[str, bool]:
        scene, verdict = self.question.scene, self.verdict
        scores = {"setting": verdict.setting == scene.setting}
        if len(scene.actors) == 1:
            actor = scene.actors[0]
            return {
                **scores,
                "colour": verdict.colour == actor.colour,
                "motion": verdict.motion == actor.motion,
                "shape": verdict.shape == actor.object,  # of pairs it is seldom certain, even when drawn
            }
        places = [verdict.find(actor.colour) for actor in scene.actors]
        return {**scores, "both present": all(places), "relation": all(places) and _relation_holds(self)}


def _relation_holds(answer: Answer) -> bool:
    """Sides are measured by the centres; depth cannot be, so for it presence has to do."""
    first, second = (answer.verdict.find(actor.colour) for actor in answer.question.scene.actors)
    assert first is not None
    assert second is not None
    right, down = float(first.x.mean() - second.x.mean()), float(first.y.mean() - second.y.mean())
    return {
        "left of": right < -0.1,
        "right of": right > 0.1,
        "above": down < -0.1,
        "below": down > 0.1,
        "behind": True,
        "in front of": True,
    }[answer.question.scene.relation or "behind"]


@dataclass(frozen=True, slots=True)
class Tally:
    """How often one thing was right."""

    right: int
    of: int

    @property
    def per_cent(self) -> float:
        return 100 * self.right / self.of


def tally(answers: Sequence[Answer]) -> dict[str, Tally]:
    marks: dict[str, list[bool]] = {}
    for answer in answers:
        for name, is_right in answer.score().items():
            marks.setdefault(name, []).append(is_right)
    return {name: Tally(sum(given), len(given)) for name, given in sorted(marks.items())}


def print_table(table: dict[str, Tally]) -> None:
    print(f"{'':14s} right   of            wanted")
    for name, mark in table.items():
        wanted = f"{TARGETS[name]:6.0f} %" if name in TARGETS else ""
        print(f"{name:14s} {mark.right:5d} {mark.of:4d} {mark.per_cent:6.1f} % {wanted}", flush=True)


def describe_miss(answer: Answer) -> str:
    wrong = [name for name, is_right in answer.score().items() if not is_right]
    seen = ", ".join(f"{one.colour} {one.shape}" for one in answer.verdict.sightings[:2])
    verdict = answer.verdict
    return f"{', '.join(wrong)}: {answer.question.prompt!r} -> {verdict.setting}, {seen}, {verdict.motion}"
