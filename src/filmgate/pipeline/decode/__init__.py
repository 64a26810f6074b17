"""From latents to frames: `open_decoder` chooses the decoder for a diffusers VAE."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from filmgate.catalog.gpus import can_decode_fast
from filmgate.errors import ModelError, UsageError
from filmgate.pipeline.decode.base import WHOLE_FRAME, Vae, VideoDecoder
from filmgate.pipeline.decode.causal import CausalDecoder, CogVideoX, Wan
from filmgate.pipeline.decode.fast.cogvideox import unsupported_cogvideox
from filmgate.pipeline.decode.fast.decoder import (
    FastDecoder,
    open_cogvideox,
    open_hunyuanvideo,
    open_ltx,
    open_wan,
)
from filmgate.pipeline.decode.fast.hunyuanvideo import unsupported_hunyuanvideo
from filmgate.pipeline.decode.fast.ltx import unsupported_ltx
from filmgate.pipeline.decode.independent import IndependentDecoder
from filmgate.pipeline.decode.ltx import LtxDecoder
from filmgate.pipeline.decode.whole import COSMOS_SIGMA_DATA, WholeClipDecoder
from filmgate.pipeline.decode.windowed import WindowedDecoder
from filmgate.pipeline.trials import Candidate, Trial, choose, network_key, relative_error, time_both
from filmgate.telemetry.logs import Log

log = Log("decode")

SELF_TEST_SIZE = (12, 16)  # rows and columns of the latents
TRIAL_SIZE = (32, 52)  # 416x256, small enough for every GPU
MAX_SELF_TEST_ERROR = 0.1  # relative norm; rounding to bfloat16 alone causes 0.01 to 0.03

DecoderChoice = Literal["auto", "exact", "fast"]


@dataclass(frozen=True, slots=True)
class FastForm:
    """The fast decoder of a VAE class."""

    open: Callable[[Vae, torch.dtype], VideoDecoder]
    latents_shape: Callable[[Vae], tuple[int, ...]]  # of a short clip, without rows and columns
    unsupported: Callable[[Vae], str | None] = lambda _: None  # why a configuration has no fast decoder


@dataclass(frozen=True, slots=True)
class SupportedVae:
    """How a VAE class is decoded. `exact` also gets the number of latent frames per chunk, which Wan uses."""

    exact: Callable[[Vae, int], VideoDecoder]
    fast: FastForm | None = None


VAES = {
    "AutoencoderKLWan": SupportedVae(
        lambda vae, latents_per_chunk: CausalDecoder(Wan(vae, latents_per_chunk)),
        FastForm(open_wan, lambda vae: (1, vae.config.z_dim, 3)),
    ),
    "AutoencoderKLCogVideoX": SupportedVae(
        lambda vae, _: CausalDecoder(CogVideoX(vae)),
        FastForm(open_cogvideox, lambda vae: (1, 5, vae.config.latent_channels), unsupported_cogvideox),
    ),
    "AutoencoderKLLTXVideo": SupportedVae(
        lambda vae, _: LtxDecoder(vae),
        FastForm(open_ltx, lambda vae: (1, vae.config.latent_channels, 3), unsupported_ltx),
    ),
    "AutoencoderKLHunyuanVideo": SupportedVae(
        lambda vae, _: WindowedDecoder(vae),
        FastForm(open_hunyuanvideo, lambda vae: (1, vae.config.latent_channels, 3), unsupported_hunyuanvideo),
    ),
    "AutoencoderKLTemporalDecoder": SupportedVae(lambda vae, _: IndependentDecoder(vae)),
    "AutoencoderKLHunyuanVideo15": SupportedVae(lambda vae, _: WholeClipDecoder(vae, masks_all_pairs=True)),
    "AutoencoderKLMochi": SupportedVae(lambda vae, _: WholeClipDecoder(vae)),
    "AutoencoderKLCosmos": SupportedVae(lambda vae, _: WholeClipDecoder(vae, COSMOS_SIGMA_DATA)),
}


def is_fast_decoder(decoder: VideoDecoder) -> bool:
    return isinstance(decoder, FastDecoder)


def fallback_decoder(decoder: VideoDecoder) -> VideoDecoder | None:
    """The exact decoder behind a fast one, for clips whose fast frames contain NaN or infinity."""
    return decoder.exact if isinstance(decoder, FastDecoder) else None


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
    several times faster; `auto` uses it if it wins a timed trial on this GPU. The exact decoder is returned
    if the fast one fails its self-test, or if there is not enough memory for it.

    `latents_per_chunk` applies to Wan only. One latent frame per chunk runs the operations of `vae.decode` on
    the same shapes: the frames are equal, and memory use is lowest. Two per chunk are faster on a CPU, and
    the frames are within 1e-5 of `vae.decode`.
    """
    check_choice(vae, choice)
    if choice != "exact" and (fast := _open_proven(vae, is_timed=choice == "auto")) is not None:
        return fast
    name = type(vae).__name__
    if name not in VAES:
        raise ModelError(f"Filmgate cannot decode with {name}; supported VAEs: {', '.join(sorted(VAES))}")
    return VAES[name].exact(vae, latents_per_chunk)


def open_fast(vae: Vae, dtype: torch.dtype = torch.float16) -> FastDecoder:
    """The fast decoder of this VAE, which must have one. Its weights are converted once for all clips."""
    supported = VAES[type(vae).__name__]
    return FastDecoder(_fast_form(vae).open(vae, dtype), supported.exact(vae, 1))


def _fast_form(vae: Vae) -> FastForm:
    form = VAES[type(vae).__name__].fast
    assert form is not None, "callers check unsupported_reason first"
    return form


def _open_proven(vae: Vae, *, is_timed: bool) -> FastDecoder | None:
    """The fast decoder, if it passes its self-test and, if `is_timed`, wins the trial. Known from then on.

    Reading the layers of a VAE, and the device and dtype from diffusers, takes 4 ms: a tenth of a short clip.
    """
    weight = next(vae.parameters())
    place = weight.device, weight.dtype, is_timed
    known, is_used = _verdicts.get(vae, (None, None))
    if known != place:
        if is_timed and not may_be_fast(vae, weight.device):
            return None
        is_used = choose(_candidate(vae, is_timed=is_timed))
        if is_used is not None:  # otherwise the next clip tries again
            _verdicts[vae] = place, is_used
    try:
        return open_fast(vae) if is_used else None
    except torch.OutOfMemoryError:
        log.warning("not enough GPU memory for the weights of the fast decoder; using the exact decoder")
        return None


_verdicts: WeakKeyDictionary[Vae, tuple[tuple[object, ...], bool]] = WeakKeyDictionary()


def may_be_fast(vae: Vae, device: torch.device) -> bool:
    """Whether `auto` tries the fast decoder."""
    return (
        device.type == "cuda"
        and can_decode_fast(torch.cuda.get_device_capability(device))
        and unsupported_reason(vae) is None
    )


def _candidate(vae: Vae, *, is_timed: bool) -> Candidate:
    key = network_key(f"decoder, {type(vae).__name__}", vae.config, vae.dtype, vae.device)
    return Candidate(
        "the fast decoder",
        lambda: self_test_error(open_fast(vae), vae),
        MAX_SELF_TEST_ERROR,
        key,
        (lambda: run_trial(open_fast(vae), vae)) if is_timed else None,
    )


def self_test_error(decoder: FastDecoder, vae: Vae) -> float:
    """How far it decodes a small clip, on this GPU and with these weights, from the exact decoder.

    Kernels are compiled on the user's machine, by a compiler and for a driver that were not tested. They
    depend on the number of channels, not on the size of the picture, so one small clip is enough.
    """
    noise = _draw_latents(vae, SELF_TEST_SIZE)
    return relative_error(*(_decode(each, noise) for each in (decoder, decoder.exact)))


def run_trial(decoder: FastDecoder, vae: Vae) -> Trial:
    """Decode the same clip with both decoders."""
    noise = _draw_latents(vae, TRIAL_SIZE)
    fast, exact = (partial(_decode, each, noise) for each in (decoder, decoder.exact))
    return time_both(fast, exact, noise.device)


@torch.inference_mode()
def _decode(decoder: VideoDecoder, latents: Tensor) -> Tensor:
    chunks = decoder.chunks(decoder.to_vae_latents(latents), WHOLE_FRAME)
    return torch.cat([chunk.float() for chunk in chunks], dim=1)


def _draw_latents(vae: Vae, size: tuple[int, int]) -> Tensor:
    """Noise in place of the pipeline latents of a short clip, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    shape = (*_fast_form(vae).latents_shape(vae), *size)
    return torch.randn(shape, generator=generator, device="cpu").to(vae.device, vae.dtype)


def unsupported_reason(vae: Vae, device: torch.device | None = None) -> str | None:
    """Why this VAE has no fast decoder, or None if it has one.

    `device` is where the VAE will run, if it is not there yet.
    """
    supported = VAES.get(type(vae).__name__)
    if supported is None or supported.fast is None:
        return f"it does not support {type(vae).__name__}"
    return supported.fast.unsupported(vae) or _missing_on(device or vae.device, vae)


def _missing_on(device: torch.device, vae: Vae) -> str | None:
    if vae.device.type == "meta":
        return "the layers of the VAE are offloaded"
    if device.type != "cuda":
        return "it needs a GPU"
    if vae.dtype not in (torch.bfloat16, torch.float16):
        return f"the VAE is in {str(vae.dtype).removeprefix('torch.')}, which is more precise"
    return "Triton is not installed" if importlib.util.find_spec("triton") is None else None
