"""The judge: measures the setting, colours, motion and shapes of a clip from its pixels, without the prompt.

tests/training/test_judge.py checks it on rendered clips, whose content is known.
"""

import math
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.renderer import Format, Renderer, ScenePlan, mix_tones
from training.flipbook.scenes import COLOURS, SETTINGS
from training.flipbook.shapes import classify_shape

SHORTER_SIDE = 96  # pixels at which clips are measured
NEAR = 0.075  # maximum OKLab distance of a pixel from the tones of its colour
MARGIN = 0.02  # by which a pixel must be nearer to its colour than to any colour of the setting
MIN_AREA = 0.006  # minimum share of the frame that counts as an object
BACKDROP_SAMPLES = 24
LEVELS = 52  # per channel of the colour lookup table

Curve = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ColourRegion:
    """The region of one colour over time: centre in shorter sides of the frame, area as a share of it."""

    colour: str
    x: Curve
    y: Curve
    area: Curve
    variation: float  # how much the region changes apart from its movement
    shape: str | None  # the object with the most similar outline, if the region is large enough

    @property
    def is_present(self) -> bool:
        return is_large_enough(self.area)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The content of a clip. Regions are ordered from the largest to the smallest."""

    setting: str
    regions: tuple[ColourRegion, ...]

    @property
    def colour(self) -> str | None:
        return self.regions[0].colour if self.regions else None

    @property
    def motion(self) -> str | None:
        return classify_motion(self.regions[0]) if self.regions else None

    @property
    def shape(self) -> str | None:
        return self.regions[0].shape if self.regions else None

    def find(self, colour: str) -> ColourRegion | None:
        return next((region for region in self.regions if region.colour == colour), None)


def is_large_enough(area: Curve) -> bool:
    return float(np.median(area)) >= MIN_AREA


def to_oklab(rgb: Tensor) -> Tensor:
    """sRGB in 0 .. 1, last axis 3, to OKLab, a perceptually uniform colour space."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055).clamp_min(0) ** 2.4)
    cones = linear @ torch.tensor(
        [
            [0.4122215, 0.2119035, 0.0883025],
            [0.5363325, 0.6806995, 0.2817188],
            [0.0514460, 0.1073970, 0.6299787],
        ]
    )
    return cones.clamp_min(0) ** (1 / 3) @ torch.tensor(
        [
            [0.2104543, 1.9779985, 0.0259040],
            [0.7936178, -2.4285922, 0.7827718],
            [-0.0040720, 0.4505937, -0.8086758],
        ]
    )


@cache
def colour_tones() -> Tensor:
    """The tones of each colour, lit and in shade: [colours, tones, 3] in OKLab."""
    tones = []
    for colour in COLOURS:
        painted = mix_tones(colour)[1:4]
        lit = torch.cat([painted * light for light in (0.85, 0.95, 1.05)]).clamp(0, 1)
        tones.append(to_oklab(lit))
    return torch.stack(tones)


def judge_clip(frames: npt.NDArray[np.uint8]) -> Measurement:
    """frames: uint8 [frames, height, width, 3]."""
    rgb = shrink(frames)
    lab = to_oklab(rgb)
    setting = classify_setting(lab)
    masks = colour_masks(rgb, setting)
    regions = [_measure_region(colour, mask, lab) for colour, mask in zip(COLOURS, masks, strict=True)]
    present = sorted(
        (region for region in regions if region.is_present), key=lambda region: -region.area.mean()
    )
    return Measurement(setting, tuple(present))


def shrink(frames: npt.NDArray[np.uint8]) -> Tensor:
    """Resize to SHORTER_SIDE: sRGB [frames, height, width, 3] in 0 .. 1."""
    picture = torch.from_numpy(np.ascontiguousarray(frames)).float().div(255).permute(0, 3, 1, 2)
    scale = SHORTER_SIDE / min(picture.shape[2:])
    size = (round(picture.shape[2] * scale), round(picture.shape[3] * scale))
    return F.interpolate(picture, size, mode="area").permute(0, 2, 3, 1)


def colour_masks(rgb: Tensor, setting: str) -> Tensor:
    """The pixels of each colour: bool [colours, frames, height, width]."""
    steps = (rgb * (LEVELS - 1)).round().long()
    index = (steps[..., 0] * LEVELS + steps[..., 1]) * LEVELS + steps[..., 2]
    colour = colour_lookup(setting)[index]
    return torch.stack([colour == number for number in range(len(COLOURS))])


@cache
def nearest_colours() -> tuple[Tensor, Tensor, Tensor]:
    """Every coarse sRGB value in OKLab, with the distance to the nearest colour and its index."""
    axis = torch.linspace(0, 1, LEVELS)
    pixels = to_oklab(torch.cartesian_prod(axis, axis, axis))
    tones = colour_tones()
    distance = torch.cdist(pixels, tones.reshape(-1, 3)).view(-1, *tones.shape[:2]).amin(2)
    return pixels, *distance.min(1)


@cache
def colour_lookup(setting: str) -> Tensor:
    """The colour of every coarse sRGB value in this setting, or -1 if it belongs to the setting."""
    pixels, nearest, index = nearest_colours()
    near = (nearest < NEAR).nonzero().squeeze(1)
    to_backdrop = torch.cdist(pixels[near], backdrop_palette(setting)).amin(1)
    actors = near[nearest[near] + MARGIN < to_backdrop]
    colours = torch.full_like(index, -1)
    colours[actors] = index[actors]
    return colours


def _measure_region(colour: str, mask: Tensor, lab: Tensor) -> ColourRegion:
    shorter = min(mask.shape[1:])
    weights = mask.double()
    total = weights.sum((1, 2)).clamp_min(1e-6)
    rows = torch.arange(mask.shape[1]).double().view(1, -1, 1)
    columns = torch.arange(mask.shape[2]).double().view(1, 1, -1)
    x = (weights * columns).sum((1, 2)) / total / shorter
    y = (weights * rows).sum((1, 2)) / total / shorter
    area = weights.mean((1, 2)).numpy()
    shape = classify_shape(mask) if is_large_enough(area) else None
    return ColourRegion(colour, x.numpy(), y.numpy(), area, _measure_variation(mask, lab), shape)


def _measure_variation(mask: Tensor, lab: Tensor, gap: int = 3) -> float:
    """Changes of the outline and of the colours inside: high for a spinning object, low for a still one."""
    if len(mask) <= gap:
        return 0.0
    now, later = mask[:-gap], mask[gap:]
    outline = (now ^ later).float().sum((1, 2)) / (now | later).float().sum((1, 2)).clamp_min(1)
    both = (now & later).float()
    shade = ((lab[:-gap] - lab[gap:]).norm(dim=3) * both).sum((1, 2)) / both.sum((1, 2)).clamp_min(1)
    return float((outline + 3 * shade).median())


def classify_motion(region: ColourRegion) -> str:  # noqa: PLR0911 - a decision tree
    """Classify the path with a small decision tree. Lengths are shares of the frame's shorter side."""
    visible = region.area > 0.2 * np.median(region.area)
    x, y = smooth(region.x[visible]), smooth(region.y[visible])
    growth = np.median(region.area[-3:]) / max(1e-6, np.median(region.area[:3]))
    wide, high = np.ptp(x), np.ptp(y)
    if growth > 2.2 or growth < 0.45:
        return "grow" if growth > 1 else "shrink"
    if max(wide, high) < 0.075:
        return "spin" if region.variation > 0.07 else "still"
    if wide > 0.15 and high > 0.15 and winding(x, y) > 0.55 * math.pi * len(region.x) / 16:
        return "orbit"
    if wide > 0.25 and high > 0.12 and count_turns(y, 0.06) >= 1:
        return "zigzag"
    if wide > high:
        return "sway" if count_turns(x, 0.04) >= 1 else "right" if x[-1] > x[0] else "left"
    if count_turns(y, 0.05) >= 1:
        return "bounce"
    if y[-1] < y[0]:
        return "up"
    return "fall" if has_landed(y) else "down"


def smooth(curve: Curve) -> Curve:
    if len(curve) < 5:
        return curve
    padded = np.concatenate([curve[:1], curve, curve[-1:]])
    return np.convolve(padded, np.ones(3) / 3, mode="valid")


def winding(x: Curve, y: Curve) -> float:
    """The angle that the path covers around its centre."""
    centre_x, centre_y = (x.max() + x.min()) / 2, (y.max() + y.min()) / 2
    angle = np.unwrap(np.arctan2(y - centre_y, x - centre_x))
    return float(abs(angle[-1] - angle[0]))


def count_turns(curve: Curve, threshold: float) -> int:
    """How often the curve changes direction by at least `threshold`."""
    turns, extreme, heading = 0, curve[0], 0
    for value in curve[1:]:
        if heading == 0:
            heading = int(np.sign(value - extreme)) if abs(value - extreme) >= threshold else 0
            extreme = value if heading else extreme
        elif (value - extreme) * heading > 0:
            extreme = value
        elif (extreme - value) * heading >= threshold:
            turns, heading, extreme = turns + 1, -heading, value
    return turns


def has_landed(y: Curve) -> bool:
    """Whether the object rests at the end of its fall."""
    tail = max(2, len(y) // 6)
    return bool(abs(y[-1] - y[-1 - tail]) < 0.07 * np.ptp(y))


def classify_setting(lab: Tensor) -> str:
    features, labels = reference_backdrops()
    nearest = int(torch.cdist(describe_backdrop(lab).unsqueeze(0), features).argmin())
    return labels[nearest]


def describe_backdrop(lab: Tensor) -> Tensor:
    """Median colours over time along the left and right edges, where actors are rare."""
    still = lab.median(dim=0).values
    strip = max(2, still.shape[1] // 10)
    edges = torch.stack([still[:, :strip].mean(1), still[:, -strip:].mean(1)])  # [2, height, 3]
    bins = F.adaptive_avg_pool1d(edges.transpose(1, 2), 12)
    return bins.mean(0).flatten()


@cache
def reference_backdrops() -> tuple[Tensor, list[str]]:
    """Features and names of empty settings, rendered square, wide and tall."""
    features, labels = [], []
    for clip, setting in _draw_empty_settings():
        features.append(describe_backdrop(clip))
        labels.append(setting)
    return torch.stack(features), labels


@cache
def backdrop_palette(setting: str) -> Tensor:
    """The colours of an empty setting, in light and in the shadow of an actor: [colours, 3]."""
    pixels = torch.cat([clip[0].reshape(-1, 3) for clip, name in _draw_empty_settings() if name == setting])
    light, a, b = ((pixels / 0.016).round().long() + 128).unbind(1)
    packed = ((light << 16) + (a << 8) + b).unique()  # one number per row, which is faster to sort
    coarse = (torch.stack([packed >> 16, packed >> 8 & 255, packed & 255], dim=1) - 128) * 0.016
    shadow = torch.tensor([0.92, 1.0, 1.0])
    return torch.cat([coarse, coarse * shadow])


@cache
def _draw_empty_settings() -> list[tuple[Tensor, str]]:
    renderer, rng = Renderer(), Random(5)
    clips = []
    for size in (Format(96, 96, 2), Format(192, 96, 2), Format(96, 192, 2)):
        names = [setting for setting in SETTINGS for _ in range(BACKDROP_SAMPLES // 3)]
        drawn = renderer.draw(ScenePlan(names, [], size, rng.getrandbits(31)))
        pixels = ((drawn + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy()
        clips += [(to_oklab(shrink(frames)), name) for frames, name in zip(pixels, names, strict=True)]
    return clips
