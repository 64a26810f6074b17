"""The decoder of Stable Video Diffusion: chunks of frames that do not depend on each other."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, as_single_clip
from filmgate.pipeline.wipe import wiping

# Smaller batches flicker more: the ladder starts with the whole clip, as the pipeline does by default.
BATCH_FRAMES = (14, 8, 4, 2, 1)
CHUNK_FRAMES = 8


class IndependentDecoder:
    """AutoencoderKLTemporalDecoder: latents [1, T, C, h, w], decoded in batches of any number of frames."""

    def __init__(self, vae: Vae) -> None:
        self._vae = vae
        self._scale = 2 ** (len(vae.config.block_out_channels) - 1)

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        config = self._vae.config
        latents = as_single_clip(latents, config.latent_channels, channel_axis=2)
        return latents.transpose(1, 2) / float(config.scaling_factor)

    def shape(self, latents: Tensor) -> ClipShape:
        _, _, frames, height, width = latents.shape
        return ClipShape(frames, height * self._scale, width * self._scale, min(CHUNK_FRAMES, frames))

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        count = latents.shape[2]
        sizes = [count, *(n for n in BATCH_FRAMES if n < count)]
        return [Rung(f"{n} frames at a time", batch_frames=n) for n in sizes]

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        assert rung.batch_frames is not None
        for part in torch.split(latents[0].transpose(0, 1), rung.batch_frames):
            frames = self._vae.decode(part, num_frames=len(part), return_dict=False)[0]
            with wiping(frames):
                for chunk in frames.split(CHUNK_FRAMES):
                    yield chunk.transpose(0, 1).clamp(-1, 1)
