"""CogVideoX and CogVideoX 1.5."""

from typing import Any

from torch import Tensor

from filmgate.jobs import Size
from filmgate.models.families import COGVIDEOX
from filmgate.pipeline.loading.families.base import EMBEDS, Defaults, Family, Pipeline, call_defaults
from filmgate.pipeline.requests import ClipRequest

TRAINED_SIZE_15 = Size(1360, 768)


class CogVideoX(Family):
    """CogVideoX; 1.5 groups latent frames into tokens (`patch_size_t`) and was trained at 16 fps."""

    facts = COGVIDEOX
    embeddings = EMBEDS
    fps = 8

    def fuse(self, network: Any, attention: Any) -> Any | None:
        from filmgate.pipeline.denoise.fused.cogvideox import FusedCogVideoX, can_fuse  # imports Triton

        return FusedCogVideoX(network, attention) if can_fuse(network) else None

    def frame_step(self, pipe: Pipeline) -> int:
        """The VAE decodes latent frames in pairs. An even number of them would yield three frames more."""
        return int(self.compression(pipe).temporal * pipe.vae.num_latent_frames_batch_size)

    def max_side(self, pipe: Pipeline) -> int:
        """1.5 has positions up to its sample size."""
        return min(_sample_size(self, pipe)) if _is_15(pipe) else super().max_side(pipe)

    def has_fixed_size(self, pipe: Pipeline) -> bool:
        """The positions of CogVideoX-5b-I2V are weights."""
        return bool(pipe.transformer.config.use_learned_positional_embeddings)

    def defaults(self, pipe: Pipeline) -> Defaults:
        """The signature leaves size and length to the transformer's config."""
        call, config = call_defaults(pipe), pipe.transformer.config
        sample, is_15 = _sample_size(self, pipe), _is_15(pipe)
        return Defaults(
            Size(*map(min, sample, TRAINED_SIZE_15)) if is_15 else sample,
            config.sample_frames,
            16 if is_15 else self.fps,
            call["num_inference_steps"],
            float(call["guidance_scale"]),
        )

    def unpack_latents(self, pipe: Pipeline, latents: Tensor, request: ClipRequest) -> Tensor:
        """1.5 pads an odd number of latent frames in front."""
        latent_frames = (request.frames - 1) // self.compression(pipe).temporal + 1
        return latents[:, latents.shape[1] - latent_frames :]


def _is_15(pipe: Pipeline) -> bool:
    return bool(pipe.transformer.config.patch_size_t)


def _sample_size(family: Family, pipe: Pipeline) -> Size:
    config, spatial = pipe.transformer.config, family.compression(pipe).spatial
    return Size(config.sample_width * spatial, config.sample_height * spatial)
