"""Which object has this outline? A region's silhouette against those of the renderer's own objects.

Both are brought to the same place and size, the known ones turned and mirrored every way, and the likest
wins. Reported beside the judge's marks, never required: it sees outlines, not what is painted inside them.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from training.flipbook.objects import LAYERS, build_atlas
from training.flipbook.world import OBJECTS

GRID = 28  # cells a side on which outlines are compared
REACH = 2.4  # half a side, in root-mean-square radii of the region
TURNS = 24
COLOURED = (LAYERS.index("body"), LAYERS.index("tint"), LAYERS.index("shade"))


def name_shape(region: Tensor) -> str:
    """region: which pixels are the object's, bool [frames, height, width], somewhere true."""
    seen = region[region.flatten(1).any(1)]
    likeness = _unit(normalise(seen.float())) @ known_outlines().flatten(0, 1).T
    best_turn = likeness.unflatten(1, (len(OBJECTS), -1)).amax(2)
    return OBJECTS[int(best_turn.mean(0).argmax())]


def normalise(masks: Tensor) -> Tensor:
    """[n, height, width] brought to one centre and one size: [n, GRID, GRID]."""
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
    """As directions, without their mean: the product of two is their correlation."""
    flat = pictures.flatten(1)
    return F.normalize(flat - flat.mean(1, keepdim=True), dim=1)


@cache
def known_outlines() -> Tensor:
    """What shows an object's own colour, at every turn and in the mirror: [objects, turns, GRID * GRID]."""
    inside = build_atlas() < 0
    top = (inside * torch.arange(1, len(LAYERS) + 1).view(1, -1, 1, 1)).amax(1) - 1
    masks = F.avg_pool2d(torch.isin(top, torch.tensor(COLOURED)).float().unsqueeze(1), 2)
    angles = torch.arange(TURNS) * math.tau / TURNS
    views = []
    for mirror in (1.0, -1.0):
        for cos, sin in zip(angles.cos().tolist(), angles.sin().tolist(), strict=True):
            turn = torch.tensor([[mirror * cos, mirror * sin, 0.0], [-sin, cos, 0.0]])
            grid = F.affine_grid(turn.expand(len(masks), 2, 3), list(masks.shape), align_corners=False)
            turned = F.grid_sample(masks, grid, align_corners=False).squeeze(1)
            views.append(_unit(normalise(turned)))
    return torch.stack(views, dim=1)
