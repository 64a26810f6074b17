"""CogVideoX and CogVideoX 1.5."""

from typing import Any

from torch import Tensor

from filmgate.jobs import Size
from filmgate.pipeline.loading.families.base import EMBEDS, Defaults, Family, Pipeline, call_defaults
from filmgate.pipeline.requests import ClipRequest


class CogVideoX(Family):
    """CogVideoX; 1.5 groups latent frames into tokens (`patch_size_t`) and was trained at 16 fps."""

    name = "cogvideox"
    text_to_video = "CogVideoXPipeline"
    image_to_video = "CogVideoXImageToVideoPipeline"
    embeddings = EMBEDS
    fps = 8
    has_fused_blocks = True

    def fuse(self, network: Any, attention: Any) -> Any | None:
        from filmgate.pipeline.denoise.fused.cogvideox import FusedCogVideoX, can_fuse  # imports Triton

        return FusedCogVideoX(network, attention) if can_fuse(network) else None

    def defaults(self, pipe: Pipeline) -> Defaults:
        """The signature leaves the size to the transformer's config, and the length in the text pipeline."""
        call, config = call_defaults(pipe), pipe.transformer.config
        spatial = self.compression(pipe).spatial
        return Defaults(
            Size(config.sample_width * spatial, config.sample_height * spatial),
            call["num_frames"] or config.sample_frames,
            16 if config.patch_size_t else self.fps,
            call["num_inference_steps"],
            float(call["guidance_scale"]),
        )

    def unpack_latents(self, pipe: Pipeline, latents: Tensor, request: ClipRequest) -> Tensor:
        """1.5 pads an odd number of latent frames in front."""
        latent_frames = (request.frames - 1) // self.compression(pipe).temporal + 1
        return latents[:, latents.shape[1] - latent_frames :]
