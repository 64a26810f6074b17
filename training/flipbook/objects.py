"""The eighteen objects as layers of signed distance fields, which scale and rotate without artefacts."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from training.flipbook.outlines import (
    arc,
    difference,
    disc,
    ellipse,
    intersection,
    polygon,
    rectangle,
    segment,
    starburst,
    union,
)
from training.flipbook.scenes import OBJECTS

# In painting order. `body` has the object's colour; `tint` and `shade` are lighter and darker tones of it.
LAYERS = ("silhouette", "body", "tint", "shade", "dark", "light")
ATLAS_PIXELS = 192
ATLAS_REACH = 1.5  # the atlas spans -1.5 .. 1.5 object radii
FAR = 2.0

Layers = dict[str, Tensor]


def draw_ball(x: Tensor, y: Tensor) -> Layers:
    body = disc(x, y, (0, 0), 0.95)
    caps = union(disc(x, y, (-1.1, 0.55), 0.85), disc(x, y, (1.1, -0.55), 0.85))
    return {"body": body, "tint": intersection(body, caps)}


def draw_box(x: Tensor, y: Tensor) -> Layers:
    body = rectangle(x, y, (0, 0), (0.82, 0.82), 0.1)
    ribbon = union(rectangle(x, y, (0, 0), (0.14, 0.82)), rectangle(x, y, (0, -0.1), (0.82, 0.14)))
    return {"body": body, "tint": intersection(body, y + 0.5), "shade": intersection(body, ribbon)}


def draw_triangle(x: Tensor, y: Tensor) -> Layers:
    corners = [(0.0, -0.92), (0.95, 0.72), (-0.95, 0.72)]
    inner = [(0.38 * a, 0.38 * b + 0.1) for a, b in corners]
    return {"body": polygon(x, y, corners, 0.07), "tint": polygon(x, y, inner, 0.04)}


def draw_star(x: Tensor, y: Tensor) -> Layers:
    body = polygon(x, y, starburst(5, 1.0, 0.47), 0.06)
    return {"body": body, "tint": polygon(x, y, starburst(5, 0.5, 0.24), 0.03)}


def draw_ring(x: Tensor, y: Tensor) -> Layers:
    body = disc(x, y, (0, 0), 0.72).abs() - 0.24
    wedges = torch.cos(3 * torch.atan2(y, x)) * -0.4 + 0.18
    return {"body": body, "tint": intersection(body, wedges)}


def draw_heart(x: Tensor, y: Tensor) -> Layers:
    lobes = union(disc(x, y, (-0.45, -0.36), 0.5), disc(x, y, (0.45, -0.36), 0.5))
    point = polygon(x, y, [(-0.86, -0.06), (0.0, 0.9), (0.86, -0.06), (0.0, -0.5)], 0.05)
    return {"body": union(lobes, point), "tint": ellipse(x, y, (-0.48, -0.46), (0.2, 0.14))}


def draw_diamond(x: Tensor, y: Tensor) -> Layers:
    body = polygon(x, y, [(-0.55, -0.72), (0.55, -0.72), (0.98, -0.2), (0.0, 0.95), (-0.98, -0.2)], 0.03)
    crown = polygon(x, y, [(-0.98, -0.2), (-0.55, -0.72), (0.55, -0.72), (0.98, -0.2)])
    pavilion = polygon(x, y, [(0.35, -0.2), (0.98, -0.2), (0.0, 0.95)])
    table = polygon(x, y, [(-0.35, -0.2), (0.0, -0.72), (0.35, -0.2)])
    return {
        "body": body,
        "tint": intersection(body, difference(crown, table)),
        "shade": intersection(body, pavilion),
    }


def draw_car(x: Tensor, y: Tensor) -> Layers:
    hull = rectangle(x, y, (0, 0.16), (1.12, 0.34), 0.2)
    cabin = polygon(x, y, [(-0.62, -0.12), (-0.42, -0.58), (0.3, -0.58), (0.66, -0.12)], 0.07)
    panes = polygon(x, y, [(-0.46, -0.14), (-0.34, -0.48), (0.24, -0.48), (0.48, -0.14)], 0.01)
    wheels = union(disc(x, y, (-0.58, 0.5), 0.27), disc(x, y, (0.58, 0.5), 0.27))
    hubs = union(disc(x, y, (-0.58, 0.5), 0.11), disc(x, y, (0.58, 0.5), 0.11))
    lamp = disc(x, y, (1.0, 0.1), 0.1)
    post = rectangle(x, y, (-0.04, -0.3), (0.05, 0.3))
    return {
        "body": union(hull, cabin),
        "shade": intersection(hull, 0.3 - y),
        "dark": wheels,
        "light": union(difference(panes, post), hubs, lamp),
    }


def draw_boat(x: Tensor, y: Tensor) -> Layers:
    hull = polygon(x, y, [(-1.05, 0.3), (1.1, 0.3), (0.72, 0.82), (-0.72, 0.82)], 0.06)
    main = polygon(x, y, [(0.06, -1.0), (0.06, 0.12), (0.9, 0.12)], 0.04)
    jib = polygon(x, y, [(-0.1, -0.72), (-0.1, 0.12), (-0.72, 0.12)], 0.04)
    return {
        "body": union(hull, main),
        "tint": jib,
        "shade": intersection(hull, 0.56 - y),
        "dark": segment(x, y, (-0.02, -1.05), (-0.02, 0.3), 0.05),
    }


def draw_fish(x: Tensor, y: Tensor) -> Layers:
    body = ellipse(x, y, (0.15, 0), (0.88, 0.58))
    tail = polygon(x, y, [(-0.52, 0.0), (-1.1, -0.5), (-0.95, 0.0), (-1.1, 0.5)], 0.05)
    fins = union(
        polygon(x, y, [(-0.25, -0.42), (0.2, -0.86), (0.42, -0.42)], 0.04),
        polygon(x, y, [(-0.1, 0.45), (0.05, 0.82), (0.3, 0.45)], 0.04),
    )
    stripe = intersection(body, (x + 0.08).abs() - 0.13)
    return {
        "body": body,
        "tint": stripe,
        "shade": difference(union(tail, fins), body),
        "dark": disc(x, y, (0.64, -0.12), 0.075),
        "light": disc(x, y, (0.62, -0.12), 0.16),
    }


def draw_bird(x: Tensor, y: Tensor) -> Layers:
    trunk = ellipse(x, y, (-0.1, 0.14), (0.74, 0.5))
    head = disc(x, y, (0.52, -0.34), 0.37)
    tail = polygon(x, y, [(-0.62, 0.05), (-1.2, -0.28), (-1.12, 0.24)], 0.05)
    wing = ellipse(0.94 * x + 0.34 * y, 0.94 * y - 0.34 * x, (-0.2, 0.1), (0.5, 0.26))
    return {
        "body": union(trunk, head, tail),
        "shade": wing,
        "dark": union(
            disc(x, y, (0.62, -0.4), 0.075), polygon(x, y, [(0.84, -0.42), (1.14, -0.26), (0.84, -0.2)], 0.03)
        ),
        "light": disc(x, y, (0.6, -0.4), 0.14),
    }


def draw_tree(x: Tensor, y: Tensor) -> Layers:
    crown = union(
        disc(x, y, (0.0, -0.5), 0.52), disc(x, y, (-0.44, -0.08), 0.46), disc(x, y, (0.44, -0.08), 0.46),
        disc(x, y, (0.0, 0.0), 0.5),
    )  # fmt: skip
    leaves = union(
        disc(x, y, (-0.18, -0.62), 0.22), disc(x, y, (-0.5, -0.16), 0.18), disc(x, y, (0.3, -0.2), 0.17)
    )
    trunk = polygon(x, y, [(-0.12, 0.3), (0.12, 0.3), (0.22, 0.98), (-0.22, 0.98)], 0.02)
    return {"body": crown, "tint": leaves, "dark": difference(trunk, crown)}


def draw_house(x: Tensor, y: Tensor) -> Layers:
    walls = rectangle(x, y, (0, 0.4), (0.72, 0.52), 0.03)
    roof = polygon(x, y, [(0.0, -0.95), (1.0, -0.08), (-1.0, -0.08)], 0.05)
    chimney = rectangle(x, y, (0.52, -0.62), (0.12, 0.3))
    return {
        "body": walls,
        "shade": union(roof, chimney),
        "dark": rectangle(x, y, (-0.26, 0.58), (0.17, 0.34), 0.04),
        "light": rectangle(x, y, (0.32, 0.38), (0.2, 0.2), 0.03),
    }


def draw_sun(x: Tensor, y: Tensor) -> Layers:
    rays = polygon(x, y, starburst(10, 1.05, 0.66), 0.02)
    core = disc(x, y, (0, 0), 0.66)
    return {"body": rays, "tint": core, "shade": difference(core, disc(x, y, (0, 0), 0.6))}


def draw_moon(x: Tensor, y: Tensor) -> Layers:
    # A polygon: the difference of two discs is no distance in its hollow and would cast a wrong shadow.
    outer = [(0.95 * math.cos(a), 0.95 * math.sin(a)) for a in arc(0.35, math.tau - 1.0)]
    inner = [(0.42 + 0.72 * math.cos(a), -0.14 + 0.72 * math.sin(a)) for a in arc(math.tau - 1.37, 0.74)]
    body = polygon(x, y, outer + inner, 0.02)
    craters = union(
        disc(x, y, (-0.6, 0.02), 0.13), disc(x, y, (-0.32, 0.6), 0.15), disc(x, y, (-0.5, -0.46), 0.09)
    )
    return {"body": body, "shade": intersection(craters, body)}


def draw_flower(x: Tensor, y: Tensor) -> Layers:
    angles = [math.tau * index / 6 for index in range(6)]
    petals = [disc(x, y, (0.58 * math.sin(a), -0.58 * math.cos(a)), 0.36) for a in angles]
    inner = [disc(x, y, (0.5 * math.sin(a), -0.5 * math.cos(a)), 0.17) for a in angles[::2]]
    return {
        "body": union(*petals, disc(x, y, (0, 0), 0.5)),
        "tint": union(*inner),
        "shade": disc(x, y, (0, 0), 0.31),
        "light": disc(x, y, (0, 0), 0.24),
    }


def draw_rocket(x: Tensor, y: Tensor) -> Layers:
    hull = intersection(disc(x, y, (-0.72, 0.12), 1.2), disc(x, y, (0.72, 0.12), 1.2), y - 0.7)
    fins = union(
        polygon(x, y, [(-0.38, 0.22), (-0.86, 0.9), (-0.34, 0.7)], 0.05),
        polygon(x, y, [(0.38, 0.22), (0.86, 0.9), (0.34, 0.7)], 0.05),
    )
    nozzle = rectangle(x, y, (0, 0.78), (0.24, 0.12), 0.03)
    return {
        "body": hull,
        "tint": intersection(hull, (y - 0.5).abs() - 0.09),
        "shade": union(difference(fins, hull), intersection(hull, y + 0.42)),
        "dark": difference(nozzle, hull),
        "light": disc(x, y, (0, -0.1), 0.2),
    }


def draw_balloon(x: Tensor, y: Tensor) -> Layers:
    body = ellipse(x, y, (0, -0.24), (0.7, 0.8))
    knot = polygon(x, y, [(0.0, 0.5), (0.14, 0.7), (-0.14, 0.7)], 0.02)
    string = union(
        segment(x, y, (0, 0.7), (0.08, 0.95), 0.035), segment(x, y, (0.08, 0.95), (-0.04, 1.2), 0.035)
    )
    return {"body": body, "tint": ellipse(x, y, (-0.28, -0.52), (0.13, 0.22)), "shade": knot, "dark": string}


DRAWINGS: dict[str, Callable[[Tensor, Tensor], Layers]] = {
    "ball": draw_ball, "box": draw_box, "triangle": draw_triangle, "star": draw_star, "ring": draw_ring,
    "heart": draw_heart, "diamond": draw_diamond, "car": draw_car, "boat": draw_boat, "fish": draw_fish,
    "bird": draw_bird, "tree": draw_tree, "house": draw_house, "sun": draw_sun, "moon": draw_moon,
    "flower": draw_flower, "rocket": draw_rocket, "balloon": draw_balloon,
}  # fmt: skip


def build_atlas() -> Tensor:
    """The distance fields of every object and layer: [objects, layers, pixels, pixels]."""
    axis = (torch.arange(ATLAS_PIXELS) + 0.5) / ATLAS_PIXELS * 2 * ATLAS_REACH - ATLAS_REACH
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    pages = []
    for name in OBJECTS:
        layers = DRAWINGS[name](x, y)
        layers["silhouette"] = union(*layers.values())
        pages.append(torch.stack([layers.get(layer, torch.full_like(x, FAR)) for layer in LAYERS]))
    return torch.stack(pages).clamp(-FAR, FAR)
