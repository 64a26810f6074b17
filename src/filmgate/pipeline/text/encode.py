"""Stage one: encodes a prompt into the embeddings that the denoiser reads."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from filmgate.pipeline.loading.families.base import call_defaults
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.text.cache import TextCache, cache_key


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the clip should and should not show. Cached embeddings are not shared between scopes (tenants)."""

    text: str
    negative: str = ""
    guidance: float = 1.0
    scope: str = ""


@dataclass(frozen=True, slots=True)
class TextEmbedding:
    """The encoded prompt, as arguments of the diffusers pipeline."""

    arguments: Mapping[str, Tensor | str]
    is_cached: bool = False


@torch.inference_mode()
def encode_text(model: VideoModel, prompt: Prompt, cache: TextCache | None = None) -> TextEmbedding:
    """Encode before denoising, so an offloaded text encoder leaves the GPU before the denoiser enters it."""
    pipe, family = model.pipe, model.family
    if not family.embeddings:
        return TextEmbedding({})
    if family.encodes_prompt_with_image(pipe):
        return TextEmbedding({"prompt": prompt.text})
    accepted = inspect.signature(pipe.encode_prompt).parameters
    arguments = {
        "prompt": prompt.text,
        "negative_prompt": prompt.negative,
        "do_classifier_free_guidance": prompt.guidance > 1,
        "max_sequence_length": call_defaults(pipe)["max_sequence_length"],
    }
    arguments = {name: value for name, value in arguments.items() if name in accepted}
    cache = TextCache(0) if cache is None else cache
    device, key = model.placement.device, cache_key(prompt.scope, arguments)
    if cached := cache.get(key):
        # A copy on a CPU too, because the pipeline may write to its arguments.
        copies = {name: tensor.to(device, copy=True) for name, tensor in cached.items()}
        return TextEmbedding(copies, is_cached=True)
    encoded = pipe.encode_prompt(**arguments, **({"device": device} if "device" in accepted else {}))
    named = zip(family.embeddings, encoded, strict=True)
    embeddings = {name: tensor for name, tensor in named if tensor is not None}
    cache.put(key, embeddings)
    return TextEmbedding(embeddings)
