"""Paints the eight settings in muted colours. Each painter fills a batch of clips of one setting."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Canvas:
    """The pixels to paint: coordinates (shorter side = 1, origin at the centre) and times."""

    clips: int
    x: Tensor  # [1, 1, 1, width]
    y: Tensor  # [1, 1, height, 1]
    half_height: float
    seconds: Tensor  # [1, frames, 1, 1]
    generator: torch.Generator

    def random(self, low: float, high: float, *shape: int) -> Tensor:
        """One random number per clip, or a table of them. Drawn on the host: equal on every device."""
        table = torch.rand(self.clips, *(shape or (1, 1, 1)), generator=self.generator)
        return (low + (high - low) * table).to(self.x.device)

    @property
    def depth(self) -> Tensor:
        """0 at the top edge, 1 at the bottom edge."""
        return (self.y + self.half_height) / (2 * self.half_height)


def rgb(code: int, like: Tensor) -> Tensor:
    return torch.tensor([(code >> shift & 255) / 255 for shift in (16, 8, 0)], device=like.device).view(
        1, 3, 1, 1, 1
    )


def fade(depth: Tensor, *codes: int) -> Tensor:
    """A vertical gradient through the given colours: [clips, 3, 1, height, width]."""
    position = depth.clamp(0, 1).unsqueeze(1) * (len(codes) - 1)
    colour = rgb(codes[0], depth)
    for index in range(1, len(codes)):
        colour = torch.lerp(colour, rgb(codes[index], depth), (position - index + 1).clamp(0, 1))
    return colour


def cover(picture: Tensor, colour: Tensor, alpha: Tensor) -> Tensor:
    return torch.lerp(picture, colour, alpha.unsqueeze(1))


def below(canvas: Canvas, edge: Tensor, softness: float = 0.006) -> Tensor:
    return ((canvas.y - edge) / softness + 0.5).clamp(0, 1)


def ridge(canvas: Canvas, level: float, height: float, wavelength: float) -> Tensor:
    """The sum of two sines as a skyline, different in every clip."""
    shift, other = canvas.random(0, math.tau), canvas.random(0, math.tau)
    wave = torch.sin(canvas.x * (math.tau / wavelength) + shift)
    ripple = torch.sin(canvas.x * (math.tau / wavelength * 2.3) + other)
    return (
        level * 2 * canvas.half_height
        - canvas.half_height
        + canvas.random(-0.02, 0.02)
        + height * (wave + 0.4 * ripple)
    )


def cover_with_hills(
    canvas: Canvas,
    picture: Tensor,
    hills: Sequence[tuple[float, int, float, float]],
    *,
    light: float,
    shade: float,
    depth: float,
) -> Tensor:
    """Hills from back to front, darker towards the bottom: level, colour, height and wavelength of each."""
    for level, code, height, wavelength in hills:
        edge = ridge(canvas, level, height, wavelength)
        brightness = light - shade * ((canvas.y - edge) / 0.5).clamp(0, depth)
        colour = (rgb(code, canvas.x) * brightness.unsqueeze(1)).clamp(0, 1)
        picture = cover(picture, colour, below(canvas, edge))
    return picture


def specks(canvas: Canvas, cell: float, radius: float, drift: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One soft dot per grid cell, optionally moving down: its coverage and a random number per dot."""
    tables = canvas.random(0, 1, 4, 32, 32)
    u = (canvas.x / cell).expand(canvas.clips, -1, canvas.y.shape[2], -1)
    v = (canvas.y / cell).expand(canvas.clips, -1, -1, canvas.x.shape[3])
    if drift is not None:
        u, v = torch.broadcast_tensors(u, v - drift / cell)
    column, row = u.floor(), v.floor()
    index = (row.long() % 32) * 32 + column.long() % 32
    indices = (
        tables.flatten(2)
        .gather(2, index.flatten(1).unsqueeze(1).expand(-1, 4, -1))
        .view(-1, 4, *index.shape[1:])
    )
    size = radius * (0.45 + 0.55 * indices[:, 2])
    distance = torch.hypot(u - column - 0.2 - 0.6 * indices[:, 0], v - row - 0.2 - 0.6 * indices[:, 1]) * cell
    return ((size - distance) / 0.006 + 0.5).clamp(0, 1), indices[:, 3]


PLAIN_TONES = (
    (0xF4EBDA, 0xE6D8C3),
    (0xDCE8EE, 0xC3D5DE),
    (0xE0ECDF, 0xC9DBCA),
    (0xEEE1E1, 0xDCCACD),
    (0xE4E0EF, 0xCEC9DF),
)


def paint_plain(canvas: Canvas) -> Tensor:
    tones = torch.stack([torch.cat([rgb(code, canvas.x) for code in pair]) for pair in PLAIN_TONES])
    chosen = tones[canvas.random(0, len(PLAIN_TONES) - 1e-3).flatten().long()]
    glow = (1.15 * torch.hypot(canvas.x, 0.8 * (canvas.y + 0.12))).clamp(0, 1).unsqueeze(1) ** 1.5
    return torch.lerp(chosen[:, 0], chosen[:, 1], glow)


def paint_night(canvas: Canvas) -> Tensor:
    sky = fade(canvas.depth, 0x252A55, 0x343869, 0x524F86).expand(canvas.clips, -1, -1, -1, -1)
    stars, chance = specks(canvas, 0.105, 0.011)
    faint, faint_chance = specks(canvas, 0.085, 0.008)
    sky = cover(sky, rgb(0xF2EFDD, canvas.x), stars * (chance > 0.35) * 0.95)
    sky = cover(sky, rgb(0xB9BCE0, canvas.x), faint * (faint_chance > 0.4) * 0.55)
    hill = below(canvas, ridge(canvas, 0.93, 0.02, 0.9))
    return cover(sky, rgb(0x2A2B52, canvas.x), hill)


def paint_sea(canvas: Canvas) -> Tensor:
    picture = fade(canvas.depth / 0.55, 0xC4DDE6, 0xEAF1EA).expand(
        canvas.clips, -1, len(canvas.seconds[0]), -1, -1
    )
    bands = ((0.55, 0x8FB9C4, 0.30), (0.66, 0x74A4B5, 0.40), (0.78, 0x5C90A6, 0.52), (0.90, 0x487B95, 0.66))
    for index, (level, code, length) in enumerate(bands):
        heading = 1 if index % 2 else -1
        phase = canvas.random(0, math.tau) + heading * math.tau * canvas.seconds / (1.6 + 0.3 * index)
        crest = 0.012 + 0.005 * index
        edge = (2 * level - 1) * canvas.half_height + crest * torch.sin(canvas.x * math.tau / length + phase)
        picture = cover(picture, rgb(0xDDEBEC, canvas.x), below(canvas, edge - 0.012) * 0.8)
        picture = cover(picture, rgb(code, canvas.x), below(canvas, edge))
    return picture


def paint_meadow(canvas: Canvas) -> Tensor:
    sky = fade(canvas.depth / 0.6, 0xC9E1EC, 0xF1F4E6).expand(canvas.clips, -1, -1, -1, -1)
    hills = ((0.60, 0xBFD6AE, 0.035, 0.9), (0.70, 0xA3C48F, 0.03, 1.3), (0.82, 0x87AF74, 0.02, 1.7))
    sky = cover_with_hills(canvas, sky, hills, light=1, shade=0.5, depth=0.35)
    blooms, chance = specks(canvas, 0.13, 0.014)
    return cover(
        sky,
        rgb(0xEFEFDC, canvas.x),
        blooms
        * (chance > 0.45)
        * below(canvas, canvas.half_height * torch.full_like(blooms[:, :, :1, :1], 0.68)),
    )


def paint_snow(canvas: Canvas) -> Tensor:
    picture = fade(canvas.depth / 0.65, 0xB4C5DA, 0xDFE7F0).expand(canvas.clips, -1, -1, -1, -1)
    hills = ((0.62, 0xD3DEEB, 0.035, 0.8), (0.72, 0xE4ECF4, 0.03, 1.2), (0.85, 0xF0F4F9, 0.02, 1.6))
    picture = cover_with_hills(canvas, picture, hills, light=1, shade=0.22, depth=0.4)
    flakes, chance = specks(canvas, 0.17, 0.017, drift=0.16 * canvas.seconds)
    picture = picture.expand(-1, -1, flakes.shape[1], -1, -1)
    return cover(picture, rgb(0xFAFCFF, canvas.x), flakes * (chance > 0.3) * 0.9)


def skyline(canvas: Canvas, level: float, spread: float, width: float) -> tuple[Tensor, Tensor, Tensor]:
    """A row of houses: coverage, horizontal position in the house (0 to 1), and height of the roof."""
    heights = canvas.random(0, 1, 64)
    place = (canvas.x + canvas.random(0, 1)) / width + 24
    index = place.floor().long().clamp(0, 63)
    roof = heights.gather(1, index.flatten(1)).view(canvas.clips, 1, 1, -1)
    edge = (2 * level - 1) * canvas.half_height - spread * roof
    return below(canvas, edge, 0.004), place - place.floor(), edge


def paint_city(canvas: Canvas) -> Tensor:
    sky = fade(canvas.depth / 0.8, 0xB7B4CD, 0xDFCBCB, 0xF0DDC8).expand(canvas.clips, -1, -1, -1, -1)
    far, _, _ = skyline(canvas, 0.72, 0.3, 0.13)
    sky = cover(sky, rgb(0xA29DB8, canvas.x), far)
    near, across, roof = skyline(canvas, 0.84, 0.26, 0.19)
    sky = cover(sky, rgb(0x6C6886, canvas.x), near)
    storey = ((canvas.y - roof) / 0.062) % 1.0
    column = (across * 3) % 1.0
    pane = (((storey - 0.55).abs() < 0.2) & ((column - 0.5).abs() < 0.22) & (canvas.y > roof + 0.03)).float()
    sky = cover(sky, rgb(0xE5D7AE, canvas.x), pane * near * 0.85)
    return cover(
        sky, rgb(0x545268, canvas.x), below(canvas, torch.full_like(roof, 0.84 * canvas.half_height))
    )


def paint_desert(canvas: Canvas) -> Tensor:
    sky = fade(canvas.depth / 0.6, 0xCFDDE0, 0xF4EAD6).expand(canvas.clips, -1, -1, -1, -1)
    dunes = ((0.60, 0xE3CFA8, 0.04, 1.1), (0.72, 0xD8BF95, 0.05, 0.85), (0.85, 0xCBAE84, 0.035, 1.3))
    return cover_with_hills(canvas, sky, dunes, light=1.04, shade=0.35, depth=0.45)


def paint_sunset(canvas: Canvas) -> Tensor:
    sky = fade(canvas.depth / 0.72, 0x7C78A6, 0xB993AB, 0xE6B9A4, 0xF5DDB9).expand(
        canvas.clips, -1, -1, -1, -1
    )
    centre_x, horizon = canvas.random(-0.3, 0.3), 0.44 * canvas.half_height
    disc = torch.hypot(canvas.x - centre_x, canvas.y - horizon + 0.02) - 0.16
    sky = cover(sky, rgb(0xFBE9C6, canvas.x), (0.5 - disc / 0.006).clamp(0, 1))
    sky = cover(sky, rgb(0xFBE3BE, canvas.x), torch.exp(-disc.clamp_min(0) * 7) * 0.45)
    water = below(canvas, torch.full_like(centre_x, horizon))
    sky = cover(sky, fade((canvas.y - horizon) / 0.5, 0xC798A0, 0x8C7799), water)
    glitter = torch.exp(-(((canvas.x - centre_x) / (0.05 + 0.25 * (canvas.y - horizon).clamp_min(0))) ** 2))
    bars = (torch.sin(canvas.y * 110) * 0.5 + 0.5) ** 2
    return cover(sky, rgb(0xF3D3B4, canvas.x), water * glitter * bars * 0.6)


PAINTERS: dict[str, Callable[[Canvas], Tensor]] = {
    "plain": paint_plain,
    "night": paint_night,
    "sea": paint_sea,
    "meadow": paint_meadow,
    "snow": paint_snow,
    "city": paint_city,
    "desert": paint_desert,
    "sunset": paint_sunset,
}
