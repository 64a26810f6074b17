"""From latents to frames: picks the decoder that fits a diffusers VAE."""

from collections.abc import Callable

from filmgate.errors import ModelError
from filmgate.pipeline.decode.base import Vae, VideoDecoder
from filmgate.pipeline.decode.causal import CausalDecoder, CogVideoX, Wan
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


def open_decoder(vae: Vae, latents_per_chunk: int = 1) -> VideoDecoder:
    """The decoder for this VAE; raises ModelError for a class nobody has driven yet.

    One latent frame a chunk is bit for bit the VAE's own decode and takes the least memory. A CPU likes more,
    which Wan's VAEs allow: the same frames up to rounding. Other VAEs keep the chunks they have.
    """
    name = type(vae).__name__
    if name == "AutoencoderKLWan":
        return _wan(vae, latents_per_chunk)
    if name not in DECODERS:
        raise ModelError(
            f"{name} is not a video VAE Filmgate can decode; known: {', '.join(sorted(DECODERS))}"
        )
    return DECODERS[name](vae)
