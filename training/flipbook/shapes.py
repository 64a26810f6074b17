"""Classifies the outline of a region by comparison with the outlines of the renderer's objects.

Position and size are normalised; references are rotated and mirrored; the highest correlation wins. The score
is reported, but has no target: it uses outlines only, not what is painted inside.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.objects import LAYERS, build_atlas
from training.flipbook.scenes import OBJECTS

GRID = 28  # cells per side of the normalised outlines
REACH = 2.4  # half the side of the grid, in root-mean-square radii of the region
ROTATIONS = 24
COLOURED = (LAYERS.index("body"), LAYERS.index("tint"), LAYERS.index("shade"))


def classify_shape(region: Tensor) -> str:
    """region: the pixels of the object, bool [frames, height, width], not empty."""
    seen = region[region.flatten(1).any(1)]
    correlation = _unit(normalise(seen.float())) @ reference_outlines().flatten(0, 1).T
    best_view = correlation.unflatten(1, (len(OBJECTS), -1)).amax(2)
    return OBJECTS[int(best_view.mean(0).argmax())]


def normalise(masks: Tensor) -> Tensor:
    """Masks [n, height, width] with normalised centre and size: [n, GRID, GRID]."""
    _, height, width = masks.shape
    rows = torch.arange(height).view(1, -1, 1) + 0.5
    columns = torch.arange(width).view(1, 1, -1) + 0.5
    total = masks.sum((1, 2), keepdim=True)
    y = (masks * rows).sum((1, 2), keepdim=True) / total
    x = (masks * columns).sum((1, 2), keepdim=True) / total
    spread = (masks * ((rows - y) ** 2 + (columns - x) ** 2)).sum((1, 2), keepdim=True) / total
    radius = (spread + 0.25).sqrt() * REACH
    axis = (torch.arange(GRID) + 0.5) / GRID * 2 - 1
    down = ((y + radius * axis.view(1, -1, 1)) / height * 2 - 1).expand(-1, -1, GRID)
    across = ((x + radius * axis.view(1, 1, -1)) / width * 2 - 1).expand(-1, GRID, -1)
    grid = torch.stack([across, down], dim=-1)
    return F.grid_sample(masks.unsqueeze(1), grid, align_corners=False).squeeze(1)


def _unit(pictures: Tensor) -> Tensor:
    """Unit vectors without their mean: the product of two is their correlation."""
    flat = pictures.flatten(1)
    return F.normalize(flat - flat.mean(1, keepdim=True), dim=1)


@cache
def reference_outlines() -> Tensor:
    """The parts in the object's colour, rotated and mirrored: [objects, views, GRID * GRID]."""
    inside = build_atlas() < 0
    top = (inside * torch.arange(1, len(LAYERS) + 1).view(1, -1, 1, 1)).amax(1) - 1
    masks = F.avg_pool2d(torch.isin(top, torch.tensor(COLOURED)).float().unsqueeze(1), 2)
    angles = torch.arange(ROTATIONS) * math.tau / ROTATIONS
    views = []
    for mirror in (1.0, -1.0):
        for cos, sin in zip(angles.cos().tolist(), angles.sin().tolist(), strict=True):
            rotation = torch.tensor([[mirror * cos, mirror * sin, 0.0], [-sin, cos, 0.0]])
            grid = F.affine_grid(rotation.expand(len(masks), 2, 3), list(masks.shape), align_corners=False)
            rotated = F.grid_sample(masks, grid, align_corners=False).squeeze(1)
            views.append(_unit(normalise(rotated)))
    return torch.stack(views, dim=1)
