"""Signed distance functions, negative inside, of the shapes that objects consist of. x: right, y: down."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Point = tuple[float, float]


def disc(x: Tensor, y: Tensor, centre: Point, radius: float) -> Tensor:
    return torch.hypot(x - centre[0], y - centre[1]) - radius


def ellipse(x: Tensor, y: Tensor, centre: Point, radii: Point) -> Tensor:
    """Exact in value and slope at the outline, which is enough for anti-aliasing."""
    u, v = (x - centre[0]) / radii[0], (y - centre[1]) / radii[1]
    level = torch.hypot(u, v)
    slope = torch.hypot(u / radii[0], v / radii[1]).clamp_min(1e-4)
    return level * (level - 1) / slope


def rectangle(x: Tensor, y: Tensor, centre: Point, half: Point, rounding: float = 0.0) -> Tensor:
    u = (x - centre[0]).abs() - half[0] + rounding
    v = (y - centre[1]).abs() - half[1] + rounding
    return torch.hypot(u.clamp_min(0), v.clamp_min(0)) + torch.maximum(u, v).clamp_max(0) - rounding


def segment(x: Tensor, y: Tensor, start: Point, end: Point, width: float) -> Tensor:
    dx, dy = end[0] - start[0], end[1] - start[1]
    along = (((x - start[0]) * dx + (y - start[1]) * dy) / (dx * dx + dy * dy)).clamp(0, 1)
    return torch.hypot(x - start[0] - along * dx, y - start[1] - along * dy) - width


def polygon(x: Tensor, y: Tensor, corners: Sequence[Point], rounding: float = 0.0) -> Tensor:
    nearest = torch.full_like(x, 1e9)
    sign = torch.ones_like(x)
    for (ax, ay), (bx, by) in zip(corners, (corners[-1], *corners[:-1]), strict=True):
        ex, ey = bx - ax, by - ay
        wx, wy = x - ax, y - ay
        along = ((wx * ex + wy * ey) / (ex * ex + ey * ey)).clamp(0, 1)
        nearest = torch.minimum(nearest, (wx - ex * along) ** 2 + (wy - ey * along) ** 2)
        above, below, turns = y >= ay, y < by, ex * wy > ey * wx
        crosses = (above & below & turns) | (~above & ~below & ~turns)
        sign = torch.where(crosses, -sign, sign)
    return sign * nearest.sqrt() - rounding


def starburst(count: int, outer: float, inner: float) -> list[Point]:
    """The corners of a star with `count` points, the first one at the top."""
    radii = [outer, inner] * count
    angles = [-math.pi / 2 + math.pi * index / count for index in range(2 * count)]
    return [
        (radius * math.cos(angle), radius * math.sin(angle))
        for radius, angle in zip(radii, angles, strict=True)
    ]


def arc(start: float, end: float, steps: int = 32) -> list[float]:
    """Angles from start to end, inclusive."""
    return [start + (end - start) * step / (steps - 1) for step in range(steps)]


def union(*distances: Tensor) -> Tensor:
    return torch.stack(distances).amin(0)


def difference(distance: Tensor, *holes: Tensor) -> Tensor:
    return torch.stack([distance, *(-hole for hole in holes)]).amax(0)


def intersection(distance: Tensor, *frames: Tensor) -> Tensor:
    return torch.stack([distance, *frames]).amax(0)
