"""The held-out prompts: combinations kept out of training, half of them in phrasings kept out as well."""

from dataclasses import dataclass
from random import Random

from training.flipbook.captions import DIRECTION_WORDS, OWN_VERBS, Wording, write_caption
from training.flipbook.world import Scene, sample_held_out_scene


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the scene it means."""

    prompt: str
    scene: Scene


def write_questions(count: int, *, pair_share: float = 0.25, seed: int = 2026) -> list[Question]:
    """Three single scenes to a pair; every other one in a held-out phrasing."""
    rng = Random(seed)
    questions = []
    for index in range(count):
        is_pair = (index + 1) * pair_share // 1 > index * pair_share // 1
        scene = sample_held_out_scene(rng, pair_share=float(is_pair))
        wording = Wording(is_complete=True, is_held_out=index % 2 == 1, own_verb_share=0)
        questions.append(Question(write_caption(scene, rng, wording), scene))
    return questions


def write_verb_questions(count: int, seed: int = 2027) -> list[Question]:
    """One object that travels by its own verb: a fish swims to the left, a car drives to the right."""
    rng, questions = Random(seed), []
    while len(questions) < count:
        scene = sample_held_out_scene(rng, pair_share=0.0)
        actor = scene.actors[0]
        if actor.object in OWN_VERBS and actor.motion in DIRECTION_WORDS:
            wording = Wording(is_complete=True, own_verb_share=1)
            questions.append(Question(write_caption(scene, rng, wording), scene))
    return questions
