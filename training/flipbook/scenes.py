"""What Flipbook can show: objects, colours, sizes, motions, settings, relations, and scenes made of them.

A rule on the words of a scene decides which scenes training never shows. There is no list of held-out scenes.
"""

import zlib
from dataclasses import dataclass
from random import Random

OBJECTS = (
    "ball", "box", "triangle", "star", "ring", "heart", "diamond", "car", "boat",
    "fish", "bird", "tree", "house", "sun", "moon", "flower", "rocket", "balloon",
)  # fmt: skip

COLOURS = {
    "red": 0xE0262E,
    "orange": 0xF77F0E,
    "yellow": 0xF7D211,
    "green": 0x22A347,
    "teal": 0x10B5AD,
    "blue": 0x2456E0,
    "purple": 0x8A2FC9,
    "pink": 0xF55FAE,
    "brown": 0x7D4A22,
    "black": 0x1C1C20,
    "white": 0xFBFBF8,
    "grey": 0x8D9096,
}

# The colour of an object if the caption names none.
NATURAL_COLOUR = {
    "ball": "red", "box": "brown", "triangle": "orange", "star": "yellow", "ring": "purple", "heart": "red",
    "diamond": "teal", "car": "red", "boat": "blue", "fish": "orange", "bird": "blue", "tree": "green",
    "house": "brown", "sun": "yellow", "moon": "yellow", "flower": "pink", "rocket": "white",
    "balloon": "red",
}  # fmt: skip

# The radius as a share of the shorter side of the frame.
SIZES = {"small": 0.115, "medium": 0.155, "large": 0.205}
PAIR_SIZES = {"small": 0.105, "medium": 0.135, "large": 0.165}

MOTIONS = (
    "left", "right", "up", "down", "bounce", "orbit", "spin", "grow", "shrink", "fall", "zigzag", "sway",
    "still",
)  # fmt: skip
SETTINGS = ("plain", "night", "sea", "meadow", "snow", "city", "desert", "sunset")
RELATIONS = ("left of", "right of", "above", "below", "behind", "in front of")

# Two objects have room only for motions that stay in place.
PAIR_MOTIONS = {
    "left of": ("still", "bounce", "spin", "grow", "shrink"),
    "right of": ("still", "bounce", "spin", "grow", "shrink"),
    "above": ("still", "sway", "spin", "grow", "shrink"),
    "below": ("still", "sway", "spin", "grow", "shrink"),
    "behind": ("still", "bounce", "sway"),
    "in front of": ("still", "bounce", "sway"),
}

# Colours that are too similar to the setting: used in training, never in the evaluation.
CAMOUFLAGE = {
    ("white", "plain"), ("white", "snow"), ("white", "sea"), ("white", "desert"), ("white", "meadow"),
    ("white", "sunset"), ("grey", "city"), ("grey", "snow"), ("grey", "sunset"), ("grey", "sea"),
    ("black", "night"), ("black", "city"), ("brown", "desert"), ("brown", "city"), ("grey", "night"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Actor:
    """One object in a scene and its motion."""

    object: str
    colour: str
    size: str
    motion: str


@dataclass(frozen=True, slots=True)
class Scene:
    """A setting with one actor, or with two actors and the relation of the first to the second."""

    actors: tuple[Actor, ...]
    setting: str
    relation: str | None = None

    @property
    def is_held_out(self) -> bool:
        first = self.actors[0]
        if len(self.actors) == 1:
            return is_reserved(first.object, first.colour, first.motion, self.setting)
        second = self.actors[1]
        return is_reserved(first.object, first.colour, second.object, second.colour)

    @property
    def is_judgeable(self) -> bool:
        """Whether the judge can measure it: no camouflage, and actors of different colours."""
        colours = [actor.colour for actor in self.actors]
        hidden = any((colour, self.setting) in CAMOUFLAGE for colour in colours)
        return not hidden and len(set(colours)) == len(colours)


def is_reserved(*words: str) -> bool:
    """One combination in ten is reserved for the evaluation."""
    return zlib.crc32(" ".join(words).encode()) % 10 == 0


def sample_scene(rng: Random, *, pair_share: float = 0.3) -> Scene:
    if rng.random() < pair_share:
        return _sample_pair(rng)
    name = rng.choice(OBJECTS)
    actor = Actor(name, _sample_colour(rng, name), rng.choice(tuple(SIZES)), rng.choice(MOTIONS))
    return Scene((actor,), rng.choice(SETTINGS))


def _sample_pair(rng: Random) -> Scene:
    relation = rng.choice(RELATIONS)
    first, second = rng.sample(OBJECTS, 2)
    colours = rng.sample(tuple(COLOURS), 2)
    motions = PAIR_MOTIONS[relation]
    actors = (
        Actor(first, colours[0], rng.choice(tuple(SIZES)), rng.choice(motions)),
        Actor(
            second,
            colours[1],
            rng.choice(tuple(SIZES)),
            rng.choice(motions) if rng.random() < 0.4 else "still",
        ),
    )
    return Scene(actors, rng.choice(SETTINGS), relation)


def _sample_colour(rng: Random, name: str) -> str:
    return NATURAL_COLOUR[name] if rng.random() < 0.1 else rng.choice(tuple(COLOURS))


def sample_training_scene(rng: Random) -> Scene:
    while (scene := sample_scene(rng)).is_held_out:
        pass
    return scene


def sample_held_out_scene(rng: Random, *, pair_share: float) -> Scene:
    while not ((scene := sample_scene(rng, pair_share=pair_share)).is_held_out and scene.is_judgeable):
        pass
    return scene
