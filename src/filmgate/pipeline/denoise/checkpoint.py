"""Denoised latents as bytes: a retry that has them starts at decode."""

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from filmgate.errors import ObjectCorrupt
from filmgate.pipeline.denoise.denoise import DenoisedClip

_NAME = "latents"


def pack_latents(denoised: DenoisedClip) -> bytes:
    """The latents as a safetensors file, bit-exact in their own dtype. Waits for the device."""
    return save({_NAME: denoised.latents.detach().to("cpu").contiguous()})


def unpack_latents(data: bytes, device: torch.device) -> DenoisedClip:
    """The latents on the device that decodes them. Raises ObjectCorrupt if the bytes are not a checkpoint."""
    try:
        return DenoisedClip(load(data)[_NAME].to(device))
    except (SafetensorError, KeyError) as exc:
        raise ObjectCorrupt("the stored latents cannot be read") from exc
