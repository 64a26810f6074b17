"""Overlapping spatial tiles: cuts latents and blends decoded tiles, as diffusers' `tiled_decode` does."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TileGrid:
    """A grid of tiles over a latent plane; `tile` and `stride` are in latent pixels."""

    height: int
    width: int
    tile: int
    stride: int
    scale: int  # decoded pixels per latent pixel

    @classmethod
    def over(cls, latents: Tensor, tile: int, scale: int) -> "TileGrid":
        """Tiles of latents [..., h, w]."""
        height, width = latents.shape[-2:]
        return cls(height, width, tile, stride_of(tile), scale)

    def cut(self, latents: Tensor) -> Iterator[Tensor]:
        """The tiles of latents [..., h, w], row by row."""
        for top, left in product(range(0, self.height, self.stride), range(0, self.width, self.stride)):
            yield latents[..., top : top + self.tile, left : left + self.tile]

    def blend(self, tiles: list[Tensor]) -> Tensor:
        """Blend decoded tiles, in the order of `cut`, into one frame. Overwrites the tiles."""
        overlap, keep = (self.tile - self.stride) * self.scale, self.stride * self.scale
        columns = len(range(0, self.width, self.stride))
        rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
        for y, row in enumerate(rows):
            for x, tile in enumerate(row):
                if y > 0:
                    fade(rows[y - 1][x], tile, overlap, dim=-2)
                if x > 0:
                    fade(row[x - 1], tile, overlap, dim=-1)
        stitched = [torch.cat([tile[..., :keep, :keep] for tile in row], dim=-1) for row in rows]
        frame = torch.cat(stitched, dim=-2)
        return frame[..., : self.height * self.scale, : self.width * self.scale]


def stride_of(tile: int) -> int:
    """Neighbouring tiles overlap by a quarter, as with diffusers' 256/192."""
    return tile - max(tile // 4, 1)


def fade(before: Tensor, after: Tensor, extent: int, dim: int) -> None:
    """Cross-fade the end of `before` into the start of `after`, in place, over `extent` entries of `dim`."""
    extent = min(before.shape[dim], after.shape[dim], extent)
    if extent == 0:
        return
    shape = [1] * after.ndim
    shape[dim] = extent
    rising = (torch.arange(extent, dtype=torch.float64, device=after.device) / extent).view(shape)
    head = after.narrow(dim, 0, extent)
    tail = before.narrow(dim, before.shape[dim] - extent, extent)
    head.copy_(tail.float() * (1 - rising).float() + head.float() * rising.float())
