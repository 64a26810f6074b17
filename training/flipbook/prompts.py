"""The evaluation prompts: scenes that training never shows, half of them in phrasings it never uses."""

from dataclasses import dataclass
from random import Random

from training.flipbook.captions import DIRECTION_WORDS, OWN_VERBS, Wording, write_caption
from training.flipbook.scenes import Scene, sample_held_out_scene


@dataclass(frozen=True, slots=True)
class EvalPrompt:
    """A prompt and the scene it describes."""

    text: str
    scene: Scene


def write_eval_prompts(count: int, *, pair_share: float = 0.25, seed: int = 2026) -> list[EvalPrompt]:
    """By default three scenes with one object to each pair; every second prompt in a held-out phrasing."""
    rng = Random(seed)
    prompts = []
    for index in range(count):
        is_pair = (index + 1) * pair_share // 1 > index * pair_share // 1
        scene = sample_held_out_scene(rng, pair_share=float(is_pair))
        wording = Wording(is_complete=True, is_held_out=index % 2 == 1, own_verb_share=0)
        prompts.append(EvalPrompt(write_caption(scene, rng, wording), scene))
    return prompts


def write_verb_prompts(count: int, seed: int = 2027) -> list[EvalPrompt]:
    """One object that moves with its own verb: a fish swims to the left, a car drives to the right."""
    rng, prompts = Random(seed), []
    while len(prompts) < count:
        scene = sample_held_out_scene(rng, pair_share=0.0)
        actor = scene.actors[0]
        if actor.object in OWN_VERBS and actor.motion in DIRECTION_WORDS:
            wording = Wording(is_complete=True, own_verb_share=1)
            prompts.append(EvalPrompt(write_caption(scene, rng, wording), scene))
    return prompts
