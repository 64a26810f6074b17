"""Fast decoders, each with the exact decoder as its fallback.

float16 has eight times the precision of bfloat16, but a smaller range. Norms keep the inputs of convolutions
in that range. If a clip leaves it, its frames contain NaN, and the caller continues with the exact decoder.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from filmgate.pipeline.decode.base import ClipShape, Rung, Vae, VideoDecoder, as_single_clip
from filmgate.pipeline.decode.causal import Cache, CausalDecoder, CogVideoX, Wan
from filmgate.pipeline.decode.fast.cogvideox import CogVideoXNetwork
from filmgate.pipeline.decode.fast.hunyuanvideo import FastHunyuanVideo, HunyuanVideoNetwork
from filmgate.pipeline.decode.fast.layers import CacheCursor, Caches
from filmgate.pipeline.decode.fast.ltx import FastLtx, ltx_network
from filmgate.pipeline.decode.fast.two_streams import TwoStreamNetwork
from filmgate.pipeline.decode.fast.wan import WanNetwork

T = TypeVar("T")


class FastWan(Wan):
    """Wan, one latent frame per step, through a WanNetwork instead of the VAE's own layers."""

    def __init__(self, vae: Vae, network: WanNetwork) -> None:
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


def open_wan(vae: Vae, dtype: torch.dtype) -> VideoDecoder:
    network = two_stream_network(vae, dtype)
    return TwoStreamDecoder(FastWan(vae, network.network), network)


def open_cogvideox(vae: Vae, dtype: torch.dtype) -> VideoDecoder:
    return CausalDecoder(FastCogVideoX(vae, cached_network(vae, dtype, CogVideoXNetwork)))


def open_ltx(vae: Vae, dtype: torch.dtype) -> VideoDecoder:
    return FastLtx(vae, cached_network(vae, dtype, ltx_network))


def open_hunyuanvideo(vae: Vae, dtype: torch.dtype) -> VideoDecoder:
    return FastHunyuanVideo(vae, cached_network(vae, dtype, HunyuanVideoNetwork))


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


def forget_network(vae: Vae) -> None:
    """Free the converted weights of this VAE; the next clip converts them again."""
    _networks.pop(vae, None)


def two_stream_network(vae: Vae, dtype: torch.dtype) -> TwoStreamNetwork:
    return cached_network(vae, dtype, lambda vae, dtype: TwoStreamNetwork(WanNetwork(vae, dtype), vae.device))
