"""Stable Video Diffusion."""

from filmgate.jobs import Size
from filmgate.models.families import SVD
from filmgate.pipeline.loading.families.base import Compression, Defaults, Family, Pipeline, call_defaults


class StableVideoDiffusion(Family):
    """Stable Video Diffusion: starts from an image, without a prompt, and compresses no frames in time."""

    facts = SVD
    denoisers = ("unet",)
    fps = 7
    size_multiple = 8

    def compression(self, pipe: Pipeline) -> Compression:
        return Compression(pipe.vae_scale_factor, 1)

    def defaults(self, pipe: Pipeline) -> Defaults:
        call = call_defaults(pipe)
        size = Size(call["width"], call["height"])
        guidance = float(call["max_guidance_scale"])  # grows from the first frame to the last
        return Defaults(size, pipe.unet.config.num_frames, self.fps, call["num_inference_steps"], guidance)
