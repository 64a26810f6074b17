"""Scores: compares the scene of a prompt with the judge's measurement, and adds results up to a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from training.flipbook.judge import Measurement
from training.flipbook.prompts import EvalPrompt

# Required scores in per cent. Other scores are only reported.
TARGETS = {"colour": 95.0, "motion": 90.0, "setting": 95.0, "both present": 80.0}


@dataclass(frozen=True, slots=True)
class EvalResult:
    """A prompt, and the judge's measurement of its clip."""

    prompt: EvalPrompt
    measured: Measurement

    def score(self) -> dict[str, bool]:
        scene, measured = self.prompt.scene, self.measured
        scores = {"setting": measured.setting == scene.setting}
        if len(scene.actors) == 1:
            actor = scene.actors[0]
            return {
                **scores,
                "colour": measured.colour == actor.colour,
                "motion": measured.motion == actor.motion,
                "shape": measured.shape
                == actor.object,  # not scored for pairs: unreliable even for rendered clips
            }
        found = [measured.find(actor.colour) for actor in scene.actors]
        return {**scores, "both present": all(found), "relation": all(found) and _relation_holds(self)}


def _relation_holds(result: EvalResult) -> bool:
    """Compare the centres of both objects. Depth cannot be measured, so both being present counts."""
    first, second = (result.measured.find(actor.colour) for actor in result.prompt.scene.actors)
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
    }[result.prompt.scene.relation or "behind"]


@dataclass(frozen=True, slots=True)
class Tally:
    """How many results were right."""

    right: int
    of: int

    @property
    def per_cent(self) -> float:
        return 100 * self.right / self.of


def tally(results: Sequence[EvalResult]) -> dict[str, Tally]:
    scores: dict[str, list[bool]] = {}
    for result in results:
        for name, is_right in result.score().items():
            scores.setdefault(name, []).append(is_right)
    return {name: Tally(sum(values), len(values)) for name, values in sorted(scores.items())}


def print_table(table: dict[str, Tally]) -> None:
    print(f"{'':14s} right   of            target")
    for name, count in table.items():
        target = f"{TARGETS[name]:6.0f} %" if name in TARGETS else ""
        print(f"{name:14s} {count.right:5d} {count.of:4d} {count.per_cent:6.1f} % {target}", flush=True)


def describe_miss(result: EvalResult) -> str:
    wrong = [name for name, is_right in result.score().items() if not is_right]
    seen = ", ".join(f"{one.colour} {one.shape}" for one in result.measured.regions[:2])
    measured = result.measured
    return f"{', '.join(wrong)}: {result.prompt.text!r} -> {measured.setting}, {seen}, {measured.motion}"
