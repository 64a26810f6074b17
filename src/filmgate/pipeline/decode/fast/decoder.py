"""Fast decoders, each with the exact decoder as its fallback.

float16 has eight times the precision of bfloat16, but a smaller range. Norms keep the inputs of convolutions
in that range. If a clip leaves it, its frames contain NaN, and the caller continues with the exact decoder.
"""

import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import WHOLE_FRAME, ClipShape, Rung, Vae, VideoDecoder
from filmgate.pipeline.decode.causal import Cache, CausalDecoder, CogVideoX, Wan
from filmgate.pipeline.decode.fast.activation import converted
from filmgate.pipeline.decode.fast.cogvideox import CogVideoXNetwork, unsupported_cogvideox
from filmgate.pipeline.decode.fast.hunyuanvideo import (
    FastHunyuanVideo,
    HunyuanVideoNetwork,
    unsupported_hunyuanvideo,
)
from filmgate.pipeline.decode.fast.layers import CacheCursor, Caches
from filmgate.pipeline.decode.fast.ltx import FastLtx, unsupported_ltx
from filmgate.pipeline.decode.fast.network import Network
from filmgate.pipeline.decode.fast.two_streams import TwoStreamNetwork
from filmgate.pipeline.decode.latents import as_single_clip
from filmgate.pipeline.decode.ltx import LtxDecoder
from filmgate.pipeline.decode.windowed import WindowedDecoder
from filmgate.telemetry.logs import Log

log = Log("decode")

T = TypeVar("T")

SELF_TEST_SIZE = (12, 16)  # rows and columns of the latents
MAX_SELF_TEST_ERROR = 0.1  # relative norm; rounding to bfloat16 alone causes 0.01 to 0.03
HALF = torch.float16


class FastWan(Wan):
    """Wan, one latent frame per step, through a Network instead of the VAE's own layers."""

    def __init__(self, vae: Vae, network: Network) -> None:
        super().__init__(vae)
        self._network = network

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        """The pipeline latents as they are: the first weights of the network denormalise them."""
        return as_single_clip(latents, self._vae.config.z_dim)

    def prepare(self, latents: Tensor) -> Tensor:
        """The latents as they are: the network includes post_quant_conv."""
        return latents

    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        caches: list[Caches] = [[], []] if cache is None else cache
        lower, upper = (CacheCursor(half) for half in caches)
        return self._network.upper(self._network.lower(latents, lower), upper), caches


class TwoStreamDecoder(CausalDecoder):
    """Decodes whole frames on two streams. Tiles are small and many, and run step by step on one."""

    def __init__(self, vae: FastWan, network: TwoStreamNetwork) -> None:
        super().__init__(vae)
        self._network = network

    def decode_whole_frames(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        return self._network.decode(chunks)


class FastCogVideoX(CogVideoX):
    """CogVideoX, chunk by chunk, through a CogVideoXNetwork instead of the VAE's own layers."""

    def __init__(self, vae: Vae, network: CogVideoXNetwork) -> None:
        super().__init__(vae)
        self._network = network

    def to_vae_latents(self, latents: Tensor) -> Tensor:
        """The pipeline latents with channels first: the network scales them, before it rounds."""
        channels = self._vae.config.latent_channels
        return as_single_clip(latents, channels, channel_axis=2).transpose(1, 2)

    def prepare(self, latents: Tensor) -> Tensor:
        """The latents as they are: the network includes post_quant_conv."""
        return latents

    def step(self, latents: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        caches: Caches = [] if cache is None else cache
        return self._network(latents, CacheCursor(caches)), caches


class FastDecoder:
    """A VideoDecoder with fast rungs only.

    `exact` is the fallback for clips that leave the range of float16. It has its own `to_vae_latents`.
    """

    def __init__(self, fast: VideoDecoder, exact: VideoDecoder) -> None:
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
    network = two_stream_network(vae, dtype)
    fast = TwoStreamDecoder(FastWan(vae, network.network), network)
    return FastDecoder(fast, CausalDecoder(Wan(vae)))


def _open_cogvideox(vae: Vae, dtype: torch.dtype) -> FastDecoder:
    network = cached_network(vae, dtype, CogVideoXNetwork)
    return FastDecoder(CausalDecoder(FastCogVideoX(vae, network)), CausalDecoder(CogVideoX(vae)))


def _open_ltx(vae: Vae, dtype: torch.dtype) -> FastDecoder:
    decoder = cached_network(vae, dtype, lambda vae, dtype: converted(vae.decoder, dtype))
    return FastDecoder(FastLtx(vae, decoder), LtxDecoder(vae))


def _open_hunyuanvideo(vae: Vae, dtype: torch.dtype) -> FastDecoder:
    network = cached_network(vae, dtype, HunyuanVideoNetwork)
    return FastDecoder(FastHunyuanVideo(vae, network), WindowedDecoder(vae))


@dataclass(frozen=True, slots=True)
class SupportedVae:
    """A VAE class that has a fast decoder."""

    open: Callable[[Vae, torch.dtype], FastDecoder]
    latents_shape: Callable[[Vae], tuple[int, ...]]  # of a short clip, without rows and columns
    unsupported: Callable[[Vae], str | None]  # why a configuration of the class has no fast decoder


SUPPORTED_VAES = {
    "AutoencoderKLWan": SupportedVae(
        _open_wan,
        latents_shape=lambda vae: (1, vae.config.z_dim, 3),
        unsupported=lambda _: None,
    ),
    "AutoencoderKLCogVideoX": SupportedVae(
        _open_cogvideox,
        latents_shape=lambda vae: (1, 5, vae.config.latent_channels),
        unsupported=unsupported_cogvideox,
    ),
    "AutoencoderKLLTXVideo": SupportedVae(
        _open_ltx,
        latents_shape=lambda vae: (1, vae.config.latent_channels, 3),
        unsupported=unsupported_ltx,
    ),
    "AutoencoderKLHunyuanVideo": SupportedVae(
        _open_hunyuanvideo,
        latents_shape=lambda vae: (1, vae.config.latent_channels, 3),
        unsupported=unsupported_hunyuanvideo,
    ),
}


def open_fast(vae: Vae, dtype: torch.dtype = HALF) -> FastDecoder:
    """The fast decoder of this VAE. Its weights are converted once for all clips."""
    return _supported(vae).open(vae, dtype)


def _supported(vae: Vae) -> SupportedVae:
    return SUPPORTED_VAES[type(vae).__name__]


def open_tested(vae: Vae) -> FastDecoder | None:
    """The fast decoder, or None if its self-test failed or its weights do not fit into GPU memory."""
    if not _self_tests.get(vae, True):
        return None
    try:
        decoder = open_fast(vae)
        if vae not in _self_tests:
            _self_tests[vae] = passes_self_test(decoder, vae)
    except torch.OutOfMemoryError:
        log.warning("not enough GPU memory for the fast decoder's weights; using the exact decoder")
        return None
    except Exception as exc:  # noqa: BLE001 - Triton and its C compiler fail in many ways; exact needs neither
        log.warning("the fast decoder cannot be built; using the exact decoder", error=exc)
        _self_tests[vae] = False
        return None
    return decoder if _self_tests[vae] else None


_self_tests: WeakKeyDictionary[Vae, bool] = WeakKeyDictionary()


@torch.inference_mode()
def passes_self_test(decoder: FastDecoder, vae: Vae) -> bool:
    """Whether it decodes a small clip, on this GPU and with these weights, as the exact decoder does.

    Kernels are compiled on the user's machine, by a compiler and for a driver that were not tested. They
    depend on the number of channels, not on the size of the picture, so one small clip is enough.
    """
    noise = pipeline_latents(vae, SELF_TEST_SIZE)
    fast, exact = (_decode(one, noise) for one in (decoder, decoder.exact))
    error = float((fast - exact).norm() / exact.norm())
    if error <= MAX_SELF_TEST_ERROR:
        return True
    logged = round(error, 4) if math.isfinite(error) else None
    log.warning("the fast decoder failed its self-test; using the exact decoder", relative_error=logged)
    return False


def _decode(decoder: VideoDecoder, latents: Tensor) -> Tensor:
    """All frames, with the same random numbers at every call: some layers of LTX-Video add noise."""
    devices = [latents.device] if latents.is_cuda else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(0)
        chunks = decoder.chunks(decoder.to_vae_latents(latents), WHOLE_FRAME)
        return torch.cat([chunk.float() for chunk in chunks], dim=1)


def pipeline_latents(vae: Vae, size: tuple[int, int]) -> Tensor:
    """Noise in place of the pipeline latents of a short clip, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    shape = (*_supported(vae).latents_shape(vae), *size)
    return torch.randn(shape, generator=generator).to(vae.device, vae.dtype)


def unsupported_reason(vae: Vae, device: torch.device | None = None) -> str | None:
    """Why this VAE has no fast decoder, or None if it has one.

    `device` is where the VAE will run, if it is not there yet.
    """
    supported = SUPPORTED_VAES.get(type(vae).__name__)
    if supported is None:
        return f"it does not support {type(vae).__name__}"
    if (reason := supported.unsupported(vae)) is not None:
        return reason
    if (device or vae.device).type != "cuda":
        return "it needs a GPU"
    if vae.dtype not in (torch.bfloat16, torch.float16):
        return f"the VAE is in {str(vae.dtype).removeprefix('torch.')}, which is more precise"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None


_networks: WeakKeyDictionary[Vae, tuple[object, Any]] = WeakKeyDictionary()


def cached_network(vae: Vae, dtype: torch.dtype, build: Callable[[Vae, torch.dtype], T]) -> T:
    """The network of this VAE, built again only when the VAE's weights have changed."""
    after_quantization = getattr(vae, "post_quant_conv", None)
    modules = [vae.decoder, *([] if after_quantization is None else [after_quantization])]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    versions = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters)  # noqa: SLF001
    key = (dtype, versions)
    cached = _networks.get(vae)
    if cached is None or cached[0] != key:
        with torch.inference_mode():
            cached = _networks[vae] = (key, build(vae, dtype))
        if vae.device.type == "cuda":
            torch.cuda.current_stream(vae.device).synchronize()  # from now on any stream may read the weights
    network: T = cached[1]
    return network


def two_stream_network(vae: Vae, dtype: torch.dtype) -> TwoStreamNetwork:
    return cached_network(vae, dtype, lambda vae, dtype: TwoStreamNetwork(Network(vae, dtype), vae.device))
