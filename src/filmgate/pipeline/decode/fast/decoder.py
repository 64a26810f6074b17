"""AutoencoderKLWan on the fast path: the same chunks, and the exact decoder behind it should numbers run out.

float16 has eight times bfloat16's precision and a fraction of its range. Norms keep what convolutions read in
that range; should weights ever leave it, a frame shows it as NaN, and whoever carries the frames goes on with
the exact decoder.
"""

import importlib.util
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import WHOLE_FRAME, ClipShape, Rung, Vae
from filmgate.pipeline.decode.causal import Cache, CausalDecoder, Wan
from filmgate.pipeline.decode.fast.layers import Caches, Tape
from filmgate.pipeline.decode.fast.network import Network
from filmgate.pipeline.decode.fast.relay import Relay
from filmgate.pipeline.latents import single

log = logging.getLogger(__name__)

PROVEN_CAPABILITIES = {(9, 0)}  # GPUs it has been measured on: docs/decoder.md
TRIAL = (3, 12, 16)  # latent frames, rows and columns of the clip it is tried on
TOLERATED = 0.1  # relative norm from the exact decoder there: bfloat16's own rounding makes 0.01 to 0.03
HALF = torch.float16


class FastWan(Wan):
    """Wan, one latent frame a step, through a Network instead of the VAE's own layers."""

    def __init__(self, vae: Vae, network: Network) -> None:
        super().__init__(vae)
        self._network = network

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        """As the pipeline has them: the network scales and shifts them by its first weights."""
        return single(latents, self._vae.config.z_dim)

    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        caches: list[Caches] = [[], []] if cache is None else cache
        lower, upper = (Tape(half) for half in caches)
        return self._network.upper(self._network.lower(latents, lower), upper), caches


class RelayDecoder(CausalDecoder):
    """Whole frames by a Relay; tiles are small and many, and go step by step."""

    def __init__(self, family: FastWan, relay: Relay, *, starts_tiled: bool) -> None:
        super().__init__(family, family.patch, starts_tiled=starts_tiled)
        self._relay = relay

    def whole_frames(self, spans: Iterable[Tensor]) -> Iterator[Tensor]:
        return self._relay.decode(spans)


class FastDecoder:
    """Streams on fast rungs alone. `exact` reads its own latents; it is for clips beyond float16's range."""

    def __init__(self, fast: CausalDecoder, exact: CausalDecoder) -> None:
        self._fast = fast
        self.exact = exact

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        return self._fast.to_vae_latents(latents)

    def shape(self, latents: Tensor) -> ClipShape:
        return self._fast.shape(latents)

    def rungs(self, latents: Tensor) -> Sequence[Rung]:
        return [replace(rung, name=f"fast, {rung.name}") for rung in self._fast.rungs(latents)]

    def chunks(self, latents: Tensor, rung: Rung) -> Iterator[Tensor]:
        return self._fast.chunks(latents, rung)


def open_fast_wan(vae: Vae, dtype: torch.dtype = HALF) -> FastDecoder:
    """The fast decoder of this VAE, with weights laid out once for all clips."""
    relay, exact = relay_of(vae, dtype), Wan(vae)
    return FastDecoder(
        RelayDecoder(FastWan(vae, relay.network), relay, starts_tiled=vae.use_tiling),
        CausalDecoder(exact, exact.patch, starts_tiled=vae.use_tiling),
    )


def open_trusted_wan(vae: Vae) -> FastDecoder | None:
    """The fast decoder, unless it failed its trial or the GPU has no room for another copy of the weights."""
    if not _trusted.get(vae, True):
        return None
    try:
        decoder = open_fast_wan(vae)
        if vae not in _trusted:
            _trusted[vae] = is_like_exact(decoder, vae)
    except torch.OutOfMemoryError:
        log.warning("decode: the GPU has no room for the fast decoder's weights; the exact one takes over")
        return None
    except Exception as exc:  # noqa: BLE001 - Triton and its C compiler fail in many ways; exact needs neither
        log.warning("decode: the fast decoder cannot be built here; the exact one takes over: %s", exc)
        _trusted[vae] = False
        return None
    return decoder if _trusted[vae] else None


_trusted: WeakKeyDictionary[Vae, bool] = WeakKeyDictionary()


@torch.inference_mode()
def is_like_exact(decoder: FastDecoder, vae: Vae) -> bool:
    """Whether it decodes a small clip, on this GPU and with these weights, as the exact decoder does.

    Kernels are compiled on the user's machine, by a compiler and for a driver we have not seen. What they
    compute depends on the number of channels, not on the picture's size: a small clip speaks for all.
    """
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(1, vae.config.z_dim, *TRIAL, generator=draw).to(vae.device, vae.dtype)
    fast, exact = (
        torch.cat([chunk.float() for chunk in one.chunks(one.to_vae_latents(noise), WHOLE_FRAME)], dim=1)
        for one in (decoder, decoder.exact)
    )
    error = float((fast - exact).norm() / exact.norm())
    if error <= TOLERATED:
        return True
    log.warning("decode: the fast decoder is %.3g off the exact one here and is not used", error)
    return False


def why_not_fast(vae: Vae, device: torch.device | None = None) -> str | None:
    """What keeps this VAE off the fast path, or None; `device` is where it will run, if not where it is."""
    if type(vae).__name__ != "AutoencoderKLWan":
        return f"{type(vae).__name__} has none"
    if (device or vae.device).type != "cuda":
        return "it needs a GPU"
    if vae.dtype not in (torch.bfloat16, torch.float16):
        return f"the VAE is in {str(vae.dtype).removeprefix('torch.')}, which asks for more precision"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def is_proven(vae: Vae) -> bool:
    """Whether it has been measured, faster and more precise, on this GPU."""
    return torch.cuda.get_device_capability(vae.device) in PROVEN_CAPABILITIES


_relays: WeakKeyDictionary[Vae, tuple[object, Relay]] = WeakKeyDictionary()


def relay_of(vae: Vae, dtype: torch.dtype) -> Relay:
    """The VAE's network, laid out again only when its weights have changed."""
    parameters = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    versions = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters)  # noqa: SLF001
    state = (dtype, versions)
    known = _relays.get(vae)
    if known is None or known[0] != state:
        with torch.inference_mode():
            known = _relays[vae] = (state, Relay(Network(vae, dtype), vae.device))
    return known[1]
