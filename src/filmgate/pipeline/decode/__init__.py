"""From latents to frames: `open_decoder` chooses the decoder for a diffusers VAE."""

from collections.abc import Callable
from typing import Literal
from weakref import WeakKeyDictionary

import torch

from filmgate.errors import ModelError, UsageError
from filmgate.pipeline.decode.base import Vae, VideoDecoder
from filmgate.pipeline.decode.causal import CausalDecoder, CogVideoX, Wan
from filmgate.pipeline.decode.fast.decoder import FastDecoder, open_tested, unsupported_reason
from filmgate.pipeline.decode.fast.trial import may_be_fast, wins_trial
from filmgate.pipeline.decode.independent import IndependentDecoder
from filmgate.pipeline.decode.ltx import LtxDecoder
from filmgate.pipeline.decode.whole import WholeClipDecoder
from filmgate.pipeline.decode.windowed import WindowedDecoder

DECODERS: dict[str, Callable[[Vae], VideoDecoder]] = {
    "AutoencoderKLWan": lambda vae: CausalDecoder(Wan(vae)),
    "AutoencoderKLCogVideoX": lambda vae: CausalDecoder(CogVideoX(vae)),
    "AutoencoderKLLTXVideo": LtxDecoder,
    "AutoencoderKLHunyuanVideo": WindowedDecoder,
    "AutoencoderKLTemporalDecoder": IndependentDecoder,
    "AutoencoderKLHunyuanVideo15": WholeClipDecoder,
    "AutoencoderKLMochi": WholeClipDecoder,
    "AutoencoderKLCosmos": WholeClipDecoder,
}


def is_fast_decoder(decoder: VideoDecoder) -> bool:
    return isinstance(decoder, FastDecoder)


def fallback_decoder(decoder: VideoDecoder) -> VideoDecoder | None:
    """The exact decoder behind a fast one, for clips whose fast frames contain NaN or infinity."""
    return decoder.exact if isinstance(decoder, FastDecoder) else None


DecoderChoice = Literal["auto", "exact", "fast"]


def check_choice(vae: Vae, choice: DecoderChoice, device: torch.device | None = None) -> None:
    """Raise UsageError if the fast decoder is required but not available. Call before denoising."""
    if choice == "fast" and (reason := unsupported_reason(vae, device)) is not None:
        raise UsageError(
            f"the fast decoder is not available: {reason}; set pipeline.decoder to auto",
            option="pipeline.decoder",
        )


def open_decoder(vae: Vae, latents_per_chunk: int = 1, choice: DecoderChoice = "auto") -> VideoDecoder:
    """The decoder for this VAE on its current device; raises ModelError for an unsupported VAE class.

    `exact` runs the VAE's own layers. `fast` is closer to a float32 decode and, where it was measured,
    several times faster; `auto` uses it if it wins a timed trial on this GPU. If the fast decoder fails its
    self-test, the exact one is returned instead.

    `latents_per_chunk` applies to Wan only. One latent frame per chunk runs the operations of `vae.decode` on
    the same shapes: the frames are equal, and memory use is lowest. Two per chunk are faster on a CPU, and
    the frames are within 1e-5 of `vae.decode`.
    """
    name = type(vae).__name__
    check_choice(vae, choice)
    fast: FastDecoder | None = None
    if choice != "exact":
        fast = open_tested(vae) if choice == "fast" else _open_winner(vae)
    if fast is not None:
        return fast
    if name == "AutoencoderKLWan":
        return CausalDecoder(Wan(vae, latents_per_chunk))
    if name not in DECODERS:
        raise ModelError(f"Filmgate cannot decode with {name}; supported VAEs: {', '.join(sorted(DECODERS))}")
    return DECODERS[name](vae)


def _open_winner(vae: Vae) -> FastDecoder | None:
    """The fast decoder, if it wins the trial. For the next clip of the same VAE that is known.

    Reading the layers of a VAE, and the device and dtype from diffusers, takes 4 ms: a tenth of a short clip.
    """
    weight = next(vae.parameters())
    place = weight.device, weight.dtype
    if _winners.get(vae) == place:
        return open_tested(vae)
    if unsupported_reason(vae) is not None or not may_be_fast(vae):
        return None
    fast = open_tested(vae)
    if fast is None or not wins_trial(fast, vae):
        return None
    _winners[vae] = place
    return fast


_winners: WeakKeyDictionary[Vae, tuple[torch.device, torch.dtype]] = WeakKeyDictionary()
