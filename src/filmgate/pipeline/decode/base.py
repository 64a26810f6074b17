"""What every decoder is: latent frames in, chunks of pixel frames out, on a rung of the memory ladder."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

Vae = Any
"""A diffusers autoencoder. diffusers ships no types; the decoders check what they drive."""


@dataclass(frozen=True, slots=True)
class ClipShape:
    """What a decode will yield, known before it starts."""

    frames: int
    height: int
    width: int
    chunk_frames: int  # the longest chunk: what one ring slot must hold


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to decode, from the most memory (first) to the least (last)."""

    name: str
    tile_pixels: int | None = None  # None: the whole frame at once
    is_parked: bool = False  # tile caches wait in host memory between chunks
    batch_frames: int | None = None  # frames decoded together, where the VAE leaves the choice


WHOLE_FRAME = Rung("whole frame")


class VideoDecoder(Protocol):
    """Drives one VAE. Holds no state between calls, so clips may be decoded on it at the same time."""

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        """Pipeline latents (`output_type="latent"`) as the VAE wants them: de-normalised, [1, C, T, h, w]."""
        ...

    def shape(self, latents: Tensor) -> ClipShape:
        """The clip these VAE latents will become."""
        ...

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        """The memory ladder for these latents, most memory first."""
        ...

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        """Frames [3, n, height, width] in [-1, 1] on the VAE's device, in order."""
        ...
