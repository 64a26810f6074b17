"""The decoder port: latent frames in, chunks of pixel frames out, on one rung of the memory ladder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

Vae = Any
"""A diffusers autoencoder. diffusers ships no types; the decoders check the attributes they use."""


@dataclass(frozen=True, slots=True)
class ClipShape:
    """The size of a decoded clip, known before decoding starts."""

    frames: int
    height: int
    width: int
    chunk_frames: int  # frames in the longest chunk; a ring slot holds this many


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to decode. The rungs of a ladder run from the most memory to the least."""

    name: str
    tile_pixels: int | None = None  # None: whole frames
    is_cache_offloaded: bool = False  # tile caches move to host memory between chunks
    batch_frames: int | None = None  # frames per VAE call, for VAEs that allow any number


WHOLE_FRAME = Rung("whole frame")


def tile_ladder(vae: Vae, shape: ClipShape) -> list[Rung]:
    """Whole frames, then tiles of the VAE's own size and of half that size.

    Tiles that the frame fits into are left out. A VAE that uses tiles starts with them.
    """
    sizes = (vae.tile_sample_min_height, vae.tile_sample_min_height // 2)
    tiled = [Rung(f"{size} px tiles", size) for size in sizes if size < max(shape.height, shape.width)]
    return tiled if vae.use_tiling and tiled else [WHOLE_FRAME, *tiled]


class VideoDecoder(Protocol):
    """Drives one VAE. Keeps no state between calls: several clips can be decoded at the same time."""

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        """Convert pipeline latents (`output_type="latent"`) to the VAE's: de-normalised, [1, C, T, h, w]."""
        ...

    def shape(self, latents: Tensor) -> ClipShape:
        """The size of the clip that these VAE latents decode to."""
        ...

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        """The memory ladder for these latents, most memory first."""
        ...

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        """Frames [3, n, height, width] in [-1, 1] on the VAE's device, in order."""
        ...
