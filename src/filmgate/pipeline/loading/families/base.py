"""The Family type: everything that differs between model families."""

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from filmgate.jobs import Size
from filmgate.models.families import FamilyFacts
from filmgate.pipeline.requests import ClipRequest

Pipeline = Any
"""A diffusers pipeline; diffusers ships no types."""

MAX_SIDE = 4096

EMBEDS = ("prompt_embeds", "negative_prompt_embeds")
MASKED_EMBEDS = (
    "prompt_embeds",
    "prompt_attention_mask",
    "negative_prompt_embeds",
    "negative_prompt_attention_mask",
)


class Compression(NamedTuple):
    """Pixels per latent along one side, and frames per latent frame."""

    spatial: int
    temporal: int


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values a model uses where the request leaves a field out."""

    size: Size
    frames: int
    fps: int
    steps: int
    guidance: float


class Family:
    """Models that share their diffusers pipelines.

    The defaults below fit most diffusers video pipelines; a family overrides what is different. Instances
    hold no state.
    """

    facts: ClassVar[FamilyFacts]
    embeddings: ClassVar[tuple[str, ...]] = ()  # what encode_prompt returns, by argument name; empty: no text
    denoisers: ClassVar[tuple[str, ...]] = ("transformer",)  # components that run at every step, if present
    fps: ClassVar[int]
    size_multiple: ClassVar[int] = 16  # the pipeline requires sides that are a multiple of this

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def has_fused_blocks(self) -> bool:
        """Whether there are fused kernels for the family: it overrides `fuse`."""
        return type(self).fuse is not Family.fuse

    def denoisers_of(self, pipe: Pipeline) -> list[Any]:
        """The networks that run at every step, the main one first."""
        parts = (pipe.components.get(name) for name in self.denoisers)
        return [part for part in parts if part is not None]

    def fuse(self, network: Any, attention: Any) -> Any | None:  # noqa: ARG002
        """The denoiser `network` on fused kernels with this attention, or None if they do not support it."""
        return None

    def takes_image(self, pipe: Pipeline) -> bool:
        """Whether a clip may start from an image."""
        return self.needs_image(pipe)

    def needs_image(self, pipe: Pipeline) -> bool:
        """Whether a clip must start from an image."""
        return type(pipe).__name__ == self.facts.image_to_video

    def encodes_prompt_with_image(self, pipe: Pipeline) -> bool:  # noqa: ARG002
        """Whether the text encoder also reads the image, so the prompt cannot be encoded before denoising."""
        return False

    def compression(self, pipe: Pipeline) -> Compression:
        """The compression of the VAE."""
        return Compression(pipe.vae_scale_factor_spatial, pipe.vae_scale_factor_temporal)

    def frame_step(self, pipe: Pipeline) -> int:
        """The length of a clip is one frame plus a multiple of this."""
        return self.compression(pipe).temporal

    def max_side(self, pipe: Pipeline) -> int:  # noqa: ARG002
        """The longest side in pixels."""
        return MAX_SIDE

    def has_fixed_size(self, pipe: Pipeline) -> bool:  # noqa: ARG002
        """Whether the model renders only its default size."""
        return False

    def defaults(self, pipe: Pipeline) -> Defaults:
        """The defaults in the pipeline's own signature."""
        call = call_defaults(pipe)
        size = Size(call["width"], call["height"])
        steps, guidance = call["num_inference_steps"], float(call["guidance_scale"])
        return Defaults(size, call["num_frames"], self.fps, steps, guidance)

    def extra_frames(self, pipe: Pipeline) -> int:  # noqa: ARG002
        """Frames to request beyond those of the clip, because the pipeline drops them."""
        return 0

    def unpack_latents(self, pipe: Pipeline, latents: Tensor, request: ClipRequest) -> Tensor:  # noqa: ARG002
        """The latents of the pipeline in the layout that the decoder reads, without padding."""
        return latents


def call_defaults(pipe: Pipeline) -> dict[str, Any]:
    """The default of every argument of the pipeline's `__call__`."""
    parameters = inspect.signature(type(pipe).__call__).parameters
    return {name: parameter.default for name, parameter in parameters.items()}
