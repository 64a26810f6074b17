"""VAEs on the fast path: the same chunks, and the exact decoder behind it should numbers run out.

float16 has eight times bfloat16's precision and a fraction of its range. Norms keep what convolutions read in
that range; should weights ever leave it, a frame shows it as NaN, and whoever carries the frames goes on with
the exact decoder.
"""

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import WHOLE_FRAME, ClipShape, Rung, Vae
from filmgate.pipeline.decode.causal import Cache, CausalDecoder, CogVideoX, Wan
from filmgate.pipeline.decode.fast.cogvideox import CogVideoXNetwork, why_not_cogvideox
from filmgate.pipeline.decode.fast.layers import Caches, Tape
from filmgate.pipeline.decode.fast.network import Network
from filmgate.pipeline.decode.fast.relay import Relay
from filmgate.pipeline.decode.latents import single

log = logging.getLogger(__name__)

T = TypeVar("T")

TRIAL_SIZE = (12, 16)  # rows and columns of the latents it is tried on
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

    def prepare(self, latents: Tensor) -> Tensor:
        """Left as they are: the network's first weights do this too."""
        return latents

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


class FastCogVideoX(CogVideoX):
    """CogVideoX, chunk by chunk, through a CogVideoXNetwork instead of the VAE's own layers."""

    def __init__(self, vae: Vae, network: CogVideoXNetwork) -> None:
        super().__init__(vae)
        self._network = network

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        """As the pipeline has them, channels first: the network scales them, before it rounds."""
        return single(latents, self._vae.config.latent_channels, channel_axis=2).transpose(1, 2)

    def prepare(self, latents: Tensor) -> Tensor:
        """Left as they are: the network's first weights do this too."""
        return latents

    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        caches: Caches = [] if cache is None else cache
        return self._network(latents, Tape(caches)), caches


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


def _open_wan(vae: Vae, dtype: torch.dtype) -> FastDecoder:
    relay, exact = relay_of(vae, dtype), Wan(vae)
    return FastDecoder(
        RelayDecoder(FastWan(vae, relay.network), relay, starts_tiled=vae.use_tiling),
        CausalDecoder(exact, exact.patch, starts_tiled=vae.use_tiling),
    )


def _open_cogvideox(vae: Vae, dtype: torch.dtype) -> FastDecoder:
    network = laid_out(vae, dtype, CogVideoXNetwork)
    families = FastCogVideoX(vae, network), CogVideoX(vae)
    return FastDecoder(*(CausalDecoder(family, starts_tiled=vae.use_tiling) for family in families))


@dataclass(frozen=True, slots=True)
class Family:
    """One class of VAEs on the fast path."""

    open: Callable[[Vae, torch.dtype], FastDecoder]
    trial_shape: Callable[[Vae], tuple[int, ...]]  # of a small clip's latents, as its pipeline returns them
    obstacle: Callable[[Vae], str | None]  # what in a configuration it does not know
    proven_on: frozenset[tuple[int, int]]  # compute capabilities it has been measured on: docs/decoder.md


FAMILIES = {
    "AutoencoderKLWan": Family(
        _open_wan,
        trial_shape=lambda vae: (1, vae.config.z_dim, 3, *TRIAL_SIZE),
        obstacle=lambda _: None,
        proven_on=frozenset({(9, 0)}),
    ),
    "AutoencoderKLCogVideoX": Family(
        _open_cogvideox,
        trial_shape=lambda vae: (1, 5, vae.config.latent_channels, *TRIAL_SIZE),
        obstacle=why_not_cogvideox,
        proven_on=frozenset({(9, 0)}),
    ),
}


def open_fast(vae: Vae, dtype: torch.dtype = HALF) -> FastDecoder:
    """The fast decoder of this VAE, with weights laid out once for all clips."""
    return family_of(vae).open(vae, dtype)


def family_of(vae: Vae) -> Family:
    return FAMILIES[type(vae).__name__]


def open_trusted(vae: Vae) -> FastDecoder | None:
    """The fast decoder, unless it failed its trial or the GPU has no room for another copy of the weights."""
    if not _trusted.get(vae, True):
        return None
    try:
        decoder = open_fast(vae)
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
    noise = torch.randn(family_of(vae).trial_shape(vae), generator=draw).to(vae.device, vae.dtype)
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
    family = FAMILIES.get(type(vae).__name__)
    if family is None:
        return f"{type(vae).__name__} has none"
    if (obstacle := family.obstacle(vae)) is not None:
        return obstacle
    if (device or vae.device).type != "cuda":
        return "it needs a GPU"
    if vae.dtype not in (torch.bfloat16, torch.float16):
        return f"the VAE is in {str(vae.dtype).removeprefix('torch.')}, which asks for more precision"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


def is_proven(vae: Vae) -> bool:
    """Whether it has been measured, faster and more precise, on this GPU."""
    return torch.cuda.get_device_capability(vae.device) in family_of(vae).proven_on


_laid_out: WeakKeyDictionary[Vae, tuple[object, Any]] = WeakKeyDictionary()


def laid_out(vae: Vae, dtype: torch.dtype, lay_out: Callable[[Vae, torch.dtype], T]) -> T:
    """The VAE's network, laid out again only when its weights have changed."""
    modules = [vae.decoder, *([] if vae.post_quant_conv is None else [vae.post_quant_conv])]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    versions = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters)  # noqa: SLF001
    state = (dtype, versions)
    known = _laid_out.get(vae)
    if known is None or known[0] != state:
        with torch.inference_mode():
            known = _laid_out[vae] = (state, lay_out(vae, dtype))
        if vae.device.type == "cuda":
            torch.cuda.current_stream(vae.device).synchronize()  # from here on any stream may read them
    network: T = known[1]
    return network


def relay_of(vae: Vae, dtype: torch.dtype) -> Relay:
    """Wan's network in two halves."""
    return laid_out(vae, dtype, lambda vae, dtype: Relay(Network(vae, dtype), vae.device))
