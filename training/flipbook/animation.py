"""The position of every actor in every frame, in units of the frame's shorter side from its centre."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from training.flipbook.scenes import PAIR_SIZES, SIZES, Actor, Scene

FPS = 16
Curve = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FrameArea:
    """Half the width and height of the frame, and the number of frames."""

    half_width: float
    half_height: float
    frames: int

    @classmethod
    def of(cls, width: int, height: int, frames: int) -> "FrameArea":
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
class StartPosition:
    """The start of an actor: its position, its radius, and how far it may move."""

    x: float
    y: float
    radius: float
    reach: float = 1.0


@dataclass(slots=True)
class Track:
    """The path of one actor: centre, stretch relative to its radius, angle, and whether it faces left."""

    x: Curve
    y: Curve
    radius: float
    stretch_x: Curve
    stretch_y: Curve
    angle: Curve
    is_mirrored: bool = False


def stand_still(start: StartPosition, area: FrameArea) -> Track:
    one, zero = np.ones(area.frames), np.zeros(area.frames)
    return Track(start.x * one, start.y * one, start.radius, one.copy(), one.copy(), zero)


def travel(axis: str, direction: int) -> Callable[[StartPosition, FrameArea, Random], Track]:
    """Cross most of the frame at a constant speed along one axis."""

    def move(start: StartPosition, area: FrameArea, rng: Random) -> Track:
        track = stand_still(start, area)
        half = area.half_width if axis == "x" else area.half_height
        span = (half - start.radius) * rng.uniform(0.75, 1.0)
        shift = rng.uniform(-1, 1) * (half - start.radius - span)
        path = direction * span * (2 * area.progress - 1) + shift
        if axis == "x":
            track.x, track.is_mirrored = path, direction < 0
        else:
            track.y = path
        return track

    return move


def bounce(start: StartPosition, area: FrameArea, rng: Random) -> Track:
    track = stand_still(start, area)
    floor = min(area.half_height - start.radius * 1.05, start.y + 0.22)
    height = (0.42 if start.reach == 1 else 0.24) * rng.uniform(0.85, 1.1)
    height = min(height, floor + area.half_height - start.radius)
    phase = rng.uniform(0, 1)
    beat = (area.seconds / rng.uniform(0.85, 1.05) + phase) % 1.0
    lift = 4 * beat * (1 - beat)
    squash = 0.16 * np.exp(-((lift / 0.18) ** 2))
    track.stretch_x, track.stretch_y = 1 + squash, 1 - squash
    track.y = floor - height * lift + start.radius * squash
    return track


def orbit(start: StartPosition, area: FrameArea, rng: Random) -> Track:
    track = stand_still(start, area)
    room = min(area.half_width, area.half_height) - start.radius
    size = min(0.24, room) * rng.uniform(0.9, 1.0)
    angle = math.tau * (area.seconds / 2.0 + rng.random())
    track.x = 0.3 * start.x + size * np.cos(angle)
    track.y = 0.3 * start.y + size * np.sin(angle)
    return track


def spin(start: StartPosition, area: FrameArea, rng: Random) -> Track:
    track = stand_still(start, area)
    track.angle = math.tau * area.seconds / rng.uniform(1.9, 2.3)
    return track


def scale(first: float, last: float) -> Callable[[StartPosition, FrameArea, Random], Track]:
    def move(start: StartPosition, area: FrameArea, rng: Random) -> Track:
        track = stand_still(start, area)
        largest = rng.uniform(0.95, 1.1) * (1.0 if start.reach == 1 else 0.85)
        track.stretch_x = largest * (first + (last - first) * area.progress)
        track.stretch_y = track.stretch_x
        return track

    return move


def fall(start: StartPosition, area: FrameArea, rng: Random) -> Track:
    track = stand_still(start, area)
    top = -area.half_height + start.radius * 0.6
    floor = area.half_height - start.radius * 1.1
    drop = np.clip(area.progress / rng.uniform(0.62, 0.75), 0, 1) ** 2
    track.y = top + (floor - top) * drop
    track.angle = rng.choice((-1, 1)) * 0.35 * (1 - drop)
    return track


def zigzag(start: StartPosition, area: FrameArea, rng: Random) -> Track:
    track = travel("x", rng.choice((-1, 1)))(start, area, rng)
    turns = 2.0 * (area.frames - 1) / 32
    wave = 2 * np.abs(2 * ((area.progress * turns + 0.25) % 1.0) - 1) - 1
    room = area.half_height - start.radius
    track.y = min(0.26, room) * wave + 0.3 * start.y
    return track


def sway(start: StartPosition, area: FrameArea, rng: Random) -> Track:
    track = stand_still(start, area)
    swing = np.sin(math.tau * (area.seconds / rng.uniform(1.25, 1.45) + rng.choice((0, 0.5))))
    track.x = start.x + (0.17 if start.reach == 1 else 0.1) * swing
    track.angle = 0.3 * swing
    return track


MOVES: dict[str, Callable[[StartPosition, FrameArea, Random], Track]] = {
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
    "still": lambda start, area, _: stand_still(start, area),
}


def animate_scene(scene: Scene, area: FrameArea, rng: Random) -> list[Track]:
    """One track per actor, in the order of the scene's actors."""
    starts = _place_pair(scene, area, rng) if scene.relation else [_place_single(scene.actors[0], area, rng)]
    return [MOVES[actor.motion](start, area, rng) for actor, start in zip(scene.actors, starts, strict=True)]


def _place_single(actor: Actor, area: FrameArea, rng: Random) -> StartPosition:
    wander_x = 0.5 * (area.half_width - 0.5) + 0.12
    return StartPosition(
        rng.uniform(-1, 1) * wander_x, rng.uniform(-0.08, 0.1), SIZES[actor.size] * rng.uniform(0.95, 1.05)
    )


def _place_pair(scene: Scene, area: FrameArea, rng: Random) -> list[StartPosition]:
    jitter = rng.uniform(-0.03, 0.03)
    aside, apart = 0.5 * area.half_width + jitter, 0.48 * area.half_height + jitter
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
    return [StartPosition(*first, radii[0], reach=0.5), StartPosition(*second, radii[1], reach=0.5)]


def paints_first_on_top(scene: Scene) -> bool:
    return scene.relation != "behind"
