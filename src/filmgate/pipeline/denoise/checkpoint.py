"""Denoised latents as bytes: a retry that has them starts at decode."""

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from filmgate.errors import ObjectCorrupt
from filmgate.pipeline.denoise.denoise import DenoisedClip
from filmgate.pipeline.transfer.streams import open_streams
from filmgate.pipeline.wipe import wiping

_NAME = "latents"


def pack_latents(denoised: DenoisedClip) -> bytes:
    """The latents as a safetensors file, bit-exact in their own dtype.

    Waits for the last denoising step, but not for work queued after it, which the copy does not stop.
    """
    denoised.wait()
    latents = denoised.latents.detach()
    assert latents.is_contiguous(), "otherwise the compute stream would have to copy them"
    streams = open_streams(latents.device)
    copy = streams.host_buffer(latents.nbytes)
    # The latents are ready: the copy waits for nothing but its own stream.
    _, copied = streams.copy(latents.view(-1).view(torch.uint8), copy, after=streams.mark_copy())
    copied.wait_on_host()
    with wiping(copy):  # page-locked memory is reused as well
        return save({_NAME: copy.view(latents.dtype).view(latents.shape)})


def unpack_latents(data: bytes, device: torch.device) -> DenoisedClip:
    """The latents on the device that decodes them. Raises ObjectCorrupt if the bytes are not a checkpoint."""
    try:
        return DenoisedClip(load(data)[_NAME].to(device))
    except (SafetensorError, KeyError) as exc:
        raise ObjectCorrupt("the stored latents cannot be read") from exc
