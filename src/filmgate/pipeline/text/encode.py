"""Stage one: a prompt becomes the embeddings its denoiser reads."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.text.cache import TextCache, digest


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the caller wants to see, and what not. Embeddings are shared within a scope: the tenant's own."""

    text: str
    negative: str = ""
    guidance: float = 1.0
    scope: str = ""


@dataclass(frozen=True, slots=True)
class TextEmbedding:
    """The prompt as the denoiser reads it, by the pipeline's own argument names."""

    arguments: Mapping[str, Tensor | str]
    is_cached: bool = False


@torch.inference_mode()
def encode_text(model: VideoModel, prompt: Prompt, cache: TextCache | None = None) -> TextEmbedding:
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
    }
    asked = {name: value for name, value in asked.items() if name in accepted}
    cache = TextCache(0) if cache is None else cache
    device, key = model.placement.device, digest(prompt.scope, asked)
    if found := cache.find(key):
        # A copy on a CPU too: the pipeline may write into what it is given.
        copies = {name: tensor.to(device, copy=True) for name, tensor in found.items()}
        return TextEmbedding(copies, is_cached=True)
    encoded = pipe.encode_prompt(**asked, **({"device": device} if "device" in accepted else {}))
    named = zip(family.embeddings, encoded, strict=True)
    embeddings = {name: tensor for name, tensor in named if tensor is not None}
    cache.keep(key, embeddings)
    return TextEmbedding(embeddings)
