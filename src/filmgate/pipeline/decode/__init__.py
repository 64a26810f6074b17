"""From latents to frames: picks the decoder that fits a diffusers VAE."""

from collections.abc import Callable

from filmgate.errors import ModelError
from filmgate.pipeline.decode.base import Vae, VideoDecoder
from filmgate.pipeline.decode.causal import CausalDecoder, CogVideoX, Wan
from filmgate.pipeline.decode.independent import IndependentDecoder
from filmgate.pipeline.decode.whole import WholeClipDecoder
from filmgate.pipeline.decode.windowed import LtxDecoder, WindowedDecoder


def _wan(vae: Vae) -> VideoDecoder:
    family = Wan(vae)
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


def open_decoder(vae: Vae) -> VideoDecoder:
    """The decoder for this VAE; raises ModelError for a class nobody has driven yet."""
    name = type(vae).__name__
    if name not in DECODERS:
        raise ModelError(
            f"{name} is not a video VAE Filmgate can decode; known: {', '.join(sorted(DECODERS))}"
        )
    return DECODERS[name](vae)
