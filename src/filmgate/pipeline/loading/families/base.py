"""The Family type: everything that differs between model families."""

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from filmgate.jobs import Size
from filmgate.pipeline.requests import ClipRequest

Pipeline = Any
"""A diffusers pipeline; diffusers ships no types."""

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

    name: ClassVar[str]
    text_to_video: ClassVar[str | None] = None  # diffusers class that needs only a prompt
    image_to_video: ClassVar[str | None] = None  # diffusers class that starts from an image
    embeddings: ClassVar[tuple[str, ...]] = ()  # what encode_prompt returns, by argument name; empty: no text
    denoisers: ClassVar[tuple[str, ...]] = ("transformer",)  # components that run at every step, if present
    fps: ClassVar[int]
    size_multiple: ClassVar[int] = 16  # the pipeline requires sides that are a multiple of this
    is_compilation_proven: ClassVar[bool] = False  # measured: `pipeline.compile = auto` may compile it
    has_fused_blocks: ClassVar[bool] = False  # `fuse` supports its denoisers
    has_quality_levels: ClassVar[bool] = False  # measured with predicted passes: renders every quality level

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The diffusers classes of this family."""
        return tuple(name for name in (self.text_to_video, self.image_to_video) if name)

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
        return type(pipe).__name__ == self.image_to_video

    def encodes_prompt_with_image(self, pipe: Pipeline) -> bool:  # noqa: ARG002
        """Whether the text encoder also reads the image, so the prompt cannot be encoded before denoising."""
        return False

    def compression(self, pipe: Pipeline) -> Compression:
        """What the VAE compresses."""
        return Compression(pipe.vae_scale_factor_spatial, pipe.vae_scale_factor_temporal)

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
