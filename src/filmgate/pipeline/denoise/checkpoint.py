"""Denoised latents as bytes: what a retry needs so that it only decodes."""

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from filmgate.errors import ObjectCorrupt
from filmgate.pipeline.denoise.denoise import DenoisedClip

_NAME = "latents"


def pack_latents(denoised: DenoisedClip) -> bytes:
    """The latents in a safetensors file; bit-exact, whatever their type. Waits for the device."""
    return save({_NAME: denoised.latents.detach().to("cpu").contiguous()})


def unpack_latents(data: bytes, device: torch.device) -> DenoisedClip:
    """The latents back where they are decoded. Raises ObjectCorrupt when the bytes are no checkpoint."""
    try:
        return DenoisedClip(load(data)[_NAME].to(device))
    except (SafetensorError, KeyError) as exc:
        raise ObjectCorrupt("the stored latents cannot be read") from exc
