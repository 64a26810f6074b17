"""Stage one: a prompt becomes the embeddings its denoiser reads."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from filmgate.pipeline.models import VideoModel


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the caller wants to see, and what not."""

    text: str
    negative: str = ""
    guidance: float = 1.0


@dataclass(frozen=True, slots=True)
class TextEmbedding:
    """The prompt as the denoiser reads it, by the pipeline's own argument names."""

    arguments: Mapping[str, Tensor | str]


@torch.inference_mode()
def encode_text(model: VideoModel, prompt: Prompt) -> TextEmbedding:
    """Encode apart from denoising, so that the text encoder can leave the GPU before the denoiser comes."""
    pipe, family = model.pipe, model.family
    if not family.embeddings:
        return TextEmbedding({})
    accepted = inspect.signature(pipe.encode_prompt).parameters
    if "image" in accepted:  # HunyuanVideo's image model reads the picture together with the text
        return TextEmbedding({"prompt": prompt.text})
    asked = {
        "prompt": prompt.text,
        "negative_prompt": prompt.negative,
        "do_classifier_free_guidance": prompt.guidance > 1,
        "max_sequence_length": inspect.signature(type(pipe).__call__)
        .parameters["max_sequence_length"]
        .default,
        "device": model.placement.device,
    }
    encoded = pipe.encode_prompt(**{name: value for name, value in asked.items() if name in accepted})
    named = zip(family.embeddings, encoded, strict=True)
    return TextEmbedding({name: tensor for name, tensor in named if tensor is not None})
