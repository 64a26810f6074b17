"""What differs between diffusers' video pipelines: names of embeddings, frame rates, who takes an image."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """One family of pipelines, named by its diffusers classes."""

    name: str
    text_to_video: str | None
    image_to_video: str | None
    embeddings: tuple[str, ...]  # what encode_prompt returns, as the pipeline's own arguments
    fps: int
    shares_weights: bool = False  # the text model itself also takes an image


EMBEDS = ("prompt_embeds", "negative_prompt_embeds")
MASKED_EMBEDS = (
    "prompt_embeds",
    "prompt_attention_mask",
    "negative_prompt_embeds",
    "negative_prompt_attention_mask",
)
POOLED_EMBEDS = ("prompt_embeds", "pooled_prompt_embeds", "prompt_attention_mask")

FAMILIES = (
    Family("wan", "WanPipeline", "WanImageToVideoPipeline", EMBEDS, fps=16),
    Family("ltx", "LTXPipeline", "LTXImageToVideoPipeline", MASKED_EMBEDS, fps=25, shares_weights=True),
    Family("cogvideox", "CogVideoXPipeline", "CogVideoXImageToVideoPipeline", EMBEDS, fps=8),
    Family("hunyuanvideo", "HunyuanVideoPipeline", "HunyuanVideoImageToVideoPipeline", POOLED_EMBEDS, fps=24),
    Family("svd", None, "StableVideoDiffusionPipeline", (), fps=7),
)


def family_of(pipeline_class: str) -> Family | None:
    """The family a diffusers pipeline class belongs to."""
    return next((f for f in FAMILIES if pipeline_class in (f.text_to_video, f.image_to_video)), None)


def known_pipelines() -> list[str]:
    """Every pipeline class Filmgate runs, for messages."""
    return sorted(name for f in FAMILIES for name in (f.text_to_video, f.image_to_video) if name)


def denoisers_of(pipe: Any) -> list[Any]:
    """The networks that run at every step: one, or the two experts of Wan 2.2 14B."""
    parts = (pipe.components.get(name) for name in ("transformer", "transformer_2", "unet"))
    return [part for part in parts if part is not None]
