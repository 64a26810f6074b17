"""Where every actor is in every frame. Lengths are in units of the frame's shorter side, the origin is its
centre.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from training.flipbook.world import PAIR_SIZES, SIZES, Actor, Scene

FPS = 16
Curve = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """The frame: its half extents, and how many frames there are."""

    half_width: float
    half_height: float
    frames: int

    @classmethod
    def of(cls, width: int, height: int, frames: int) -> "Stage":
        shorter = min(width, height)
        return cls(width / shorter / 2, height / shorter / 2, frames)

    @property
    def progress(self) -> Curve:
        """0 at the first frame, 1 at the last."""
        return np.linspace(0.0, 1.0, self.frames) if self.frames > 1 else np.zeros(1)

    @property
    def seconds(self) -> Curve:
        return np.arange(self.frames) / FPS


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an actor stands, how large it is and how far it may go."""

    x: float
    y: float
    radius: float
    reach: float = 1.0


@dataclass(slots=True)
class Track:
    """One actor's path: centre, stretch against its radius, angle, and whether it faces left."""

    x: Curve
    y: Curve
    radius: float
    stretch_x: Curve
    stretch_y: Curve
    angle: Curve
    is_mirrored: bool = False


def rest(mark: Mark, stage: Stage) -> Track:
    one, zero = np.ones(stage.frames), np.zeros(stage.frames)
    return Track(mark.x * one, mark.y * one, mark.radius, one.copy(), one.copy(), zero)


def travel(axis: str, direction: int) -> Callable[[Mark, Stage, Random], Track]:
    """A steady crossing of most of the frame, centred on the mark's other coordinate."""

    def move(mark: Mark, stage: Stage, rng: Random) -> Track:
        track = rest(mark, stage)
        half = stage.half_width if axis == "x" else stage.half_height
        span = (half - mark.radius) * rng.uniform(0.75, 1.0)
        shift = rng.uniform(-1, 1) * (half - mark.radius - span)
        path = direction * span * (2 * stage.progress - 1) + shift
        if axis == "x":
            track.x, track.is_mirrored = path, direction < 0
        else:
            track.y = path
        return track

    return move


def bounce(mark: Mark, stage: Stage, rng: Random) -> Track:
    track = rest(mark, stage)
    floor = min(stage.half_height - mark.radius * 1.05, mark.y + 0.22)
    height = (0.42 if mark.reach == 1 else 0.24) * rng.uniform(0.85, 1.1)
    height = min(height, floor + stage.half_height - mark.radius)
    phase = rng.uniform(0, 1)
    beat = (stage.seconds / rng.uniform(0.85, 1.05) + phase) % 1.0
    lift = 4 * beat * (1 - beat)
    squash = 0.16 * np.exp(-((lift / 0.18) ** 2))
    track.stretch_x, track.stretch_y = 1 + squash, 1 - squash
    track.y = floor - height * lift + mark.radius * squash
    return track


def orbit(mark: Mark, stage: Stage, rng: Random) -> Track:
    track = rest(mark, stage)
    room = min(stage.half_width, stage.half_height) - mark.radius
    size = min(0.24, room) * rng.uniform(0.9, 1.0)
    angle = math.tau * (stage.seconds / 2.0 + rng.random())
    track.x = 0.3 * mark.x + size * np.cos(angle)
    track.y = 0.3 * mark.y + size * np.sin(angle)
    return track


def spin(mark: Mark, stage: Stage, rng: Random) -> Track:
    track = rest(mark, stage)
    track.angle = math.tau * stage.seconds / rng.uniform(1.9, 2.3)
    return track


def scale(start: float, end: float) -> Callable[[Mark, Stage, Random], Track]:
    def move(mark: Mark, stage: Stage, rng: Random) -> Track:
        track = rest(mark, stage)
        most = rng.uniform(0.95, 1.1) * (1.0 if mark.reach == 1 else 0.85)
        track.stretch_x = most * (start + (end - start) * stage.progress)
        track.stretch_y = track.stretch_x
        return track

    return move


def fall(mark: Mark, stage: Stage, rng: Random) -> Track:
    track = rest(mark, stage)
    top = -stage.half_height + mark.radius * 0.6
    floor = stage.half_height - mark.radius * 1.1
    drop = np.clip(stage.progress / rng.uniform(0.62, 0.75), 0, 1) ** 2
    track.y = top + (floor - top) * drop
    track.angle = rng.choice((-1, 1)) * 0.35 * (1 - drop)
    return track


def zigzag(mark: Mark, stage: Stage, rng: Random) -> Track:
    track = travel("x", rng.choice((-1, 1)))(mark, stage, rng)
    turns = 2.0 * (stage.frames - 1) / 32
    wave = 2 * np.abs(2 * ((stage.progress * turns + 0.25) % 1.0) - 1) - 1
    room = stage.half_height - mark.radius
    track.y = min(0.26, room) * wave + 0.3 * mark.y
    return track


def sway(mark: Mark, stage: Stage, rng: Random) -> Track:
    track = rest(mark, stage)
    swing = np.sin(math.tau * (stage.seconds / rng.uniform(1.25, 1.45) + rng.choice((0, 0.5))))
    track.x = mark.x + (0.17 if mark.reach == 1 else 0.1) * swing
    track.angle = 0.3 * swing
    return track


MOVES: dict[str, Callable[[Mark, Stage, Random], Track]] = {
    "left": travel("x", -1),
    "right": travel("x", 1),
    "up": travel("y", -1),
    "down": travel("y", 1),
    "bounce": bounce,
    "orbit": orbit,
    "spin": spin,
    "grow": scale(0.5, 1.4),
    "shrink": scale(1.4, 0.5),
    "fall": fall,
    "zigzag": zigzag,
    "sway": sway,
    "still": lambda mark, stage, _: rest(mark, stage),
}


def stage_scene(scene: Scene, stage: Stage, rng: Random) -> list[Track]:
    """Tracks in painting order of the actors' list: the caller paints the farther one first."""
    marks = _mark_pair(scene, stage, rng) if scene.relation else [_mark_alone(scene.actors[0], stage, rng)]
    return [MOVES[actor.motion](mark, stage, rng) for actor, mark in zip(scene.actors, marks, strict=True)]


def _mark_alone(actor: Actor, stage: Stage, rng: Random) -> Mark:
    wander_x = 0.5 * (stage.half_width - 0.5) + 0.12
    return Mark(
        rng.uniform(-1, 1) * wander_x, rng.uniform(-0.08, 0.1), SIZES[actor.size] * rng.uniform(0.95, 1.05)
    )


def _mark_pair(scene: Scene, stage: Stage, rng: Random) -> list[Mark]:
    jitter = rng.uniform(-0.03, 0.03)
    aside, apart = 0.5 * stage.half_width + jitter, 0.48 * stage.half_height + jitter
    level = rng.uniform(-0.02, 0.1)
    first, second = {
        "left of": ((-aside, level), (aside, level)),
        "right of": ((aside, level), (-aside, level)),
        "above": ((jitter, -apart), (-jitter, apart)),
        "below": ((jitter, apart), (-jitter, -apart)),
        "behind": ((-0.1, -0.09), (0.1, 0.13)),
        "in front of": ((0.1, 0.13), (-0.1, -0.09)),
    }[scene.relation or "left of"]
    radii = [PAIR_SIZES[actor.size] for actor in scene.actors]
    if scene.relation in {"behind", "in front of"} and rng.random() < 0.5:
        first, second = (-first[0], first[1]), (-second[0], second[1])
    return [Mark(*first, radii[0], reach=0.5), Mark(*second, radii[1], reach=0.5)]


def paints_first_on_top(scene: Scene) -> bool:
    return scene.relation != "behind"
