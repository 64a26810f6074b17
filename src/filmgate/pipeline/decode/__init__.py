"""From latents to frames: picks the decoder that fits a diffusers VAE."""

from collections.abc import Callable
from typing import Literal

import torch

from filmgate.errors import ModelError, UsageError
from filmgate.pipeline.decode.base import Vae, VideoDecoder
from filmgate.pipeline.decode.causal import CausalDecoder, CogVideoX, Wan
from filmgate.pipeline.decode.fast.decoder import FastDecoder, is_proven, open_trusted, why_not_fast
from filmgate.pipeline.decode.independent import IndependentDecoder
from filmgate.pipeline.decode.whole import WholeClipDecoder
from filmgate.pipeline.decode.windowed import LtxDecoder, WindowedDecoder


def _wan(vae: Vae, latents_per_chunk: int = 1) -> VideoDecoder:
    family = Wan(vae, latents_per_chunk)
    return CausalDecoder(family, family.patch, starts_tiled=vae.use_tiling)


def _cogvideox(vae: Vae) -> VideoDecoder:
    return CausalDecoder(CogVideoX(vae), starts_tiled=vae.use_tiling)


DECODERS: dict[str, Callable[[Vae], VideoDecoder]] = {
    "AutoencoderKLWan": _wan,
    "AutoencoderKLCogVideoX": _cogvideox,
    "AutoencoderKLLTXVideo": LtxDecoder,
    "AutoencoderKLHunyuanVideo": WindowedDecoder,
    "AutoencoderKLTemporalDecoder": IndependentDecoder,
    "AutoencoderKLHunyuanVideo15": WholeClipDecoder,
    "AutoencoderKLMochi": WholeClipDecoder,
    "AutoencoderKLCosmos": WholeClipDecoder,
}


def uses_fast(decoder: VideoDecoder) -> bool:
    """Whether this decoder has kernels of its own."""
    return isinstance(decoder, FastDecoder)


def exact_twin(decoder: VideoDecoder) -> VideoDecoder | None:
    """The decoder to go on with should this one's frames not be numbers, where there is one."""
    return decoder.exact if isinstance(decoder, FastDecoder) else None


DecoderChoice = Literal["auto", "exact", "fast"]


def check_choice(vae: Vae, choice: DecoderChoice, device: torch.device | None = None) -> None:
    """Refuse a fast decoder that cannot be had, before anything is denoised for it."""
    if choice == "fast" and (obstacle := why_not_fast(vae, device)) is not None:
        raise UsageError(f"there is no fast decoder here: {obstacle}; use auto", option="pipeline.decoder")


def open_decoder(vae: Vae, latents_per_chunk: int = 1, choice: DecoderChoice = "auto") -> VideoDecoder:
    """The decoder for this VAE, where it is now; raises ModelError for a class nobody has driven yet.

    `exact` runs the VAE's own layers. `fast` is closer to a float32 decode than they are and a multiple
    quicker; `auto` takes it on GPUs it has been measured on. It steps aside where a trial fails.

    One latent frame a chunk runs the operations of `vae.decode` on the same shapes, so the frames are equal,
    and takes the least memory. Two a chunk are faster on a CPU, which Wan's VAEs allow: the frames are then
    within 1e-5 of `vae.decode`. Other VAEs keep the chunks they have.
    """
    name = type(vae).__name__
    check_choice(vae, choice)
    if choice == "fast" or (choice == "auto" and why_not_fast(vae) is None and is_proven(vae)):
        fast = open_trusted(vae)
        if fast is not None:
            return fast
    if name == "AutoencoderKLWan":
        return _wan(vae, latents_per_chunk)
    if name not in DECODERS:
        raise ModelError(
            f"{name} is not a video VAE Filmgate can decode; known: {', '.join(sorted(DECODERS))}"
        )
    return DECODERS[name](vae)
