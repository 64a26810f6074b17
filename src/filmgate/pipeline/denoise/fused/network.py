"""What the fused denoisers of all families share: switching, and parts of a block without a kernel."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from torch import Tensor, nn
from torch.nn import functional

from filmgate.pipeline.denoise.attention import Attention
from filmgate.pipeline.denoise.fused.kernels import norm_and_rotate
from filmgate.pipeline.wipe import wipe

T = TypeVar("T")
RotaryTables = tuple[Tensor, Tensor]
"""The cosine and the sine of each pair of values, by token, in float32."""
States = tuple[Tensor, Tensor]
"""The hidden states between two parts of a block, and their norm, which the next part reads."""


class Memoized(Generic[T]):
    """Results of the latest calls, for work that several passes of a clip have in common.

    Both passes of a guided step have the same latents and the same time step, and all passes with a prompt
    have the same embedding of it. Tensors are compared by identity: a pipeline passes the same one to both
    passes, and makes a new one for the next step. The arguments are held, so no other object can take their
    identity. With `is_for_pair`, a result is kept only for the second pass of a step, because it is large.
    """

    def __init__(self, compute: Callable[..., T], count: int = 1, *, is_for_pair: bool = False) -> None:
        self._compute = compute
        self._calls: deque[tuple[tuple[object, ...], T]] = deque(maxlen=count)
        self._is_for_pair = is_for_pair

    def __call__(self, *arguments: object) -> T:
        for known, result in self._calls:
            if len(known) == len(arguments) and all(map(_is_same, known, arguments)):
                if self._is_for_pair:
                    self._calls.clear()
                return result
        result = self._compute(*arguments)
        self._calls.append((arguments, result))
        return result

    def clear(self) -> None:
        """Forget the calls, and overwrite their results: they come from the content of a clip."""
        wipe([result for _, result in self._calls])
        self._calls.clear()


def _is_same(known: object, given: object) -> bool:
    return known is given if isinstance(given, Tensor) else known == given


class FusedNetwork(ABC):
    """A denoiser of diffusers that runs fused while it is switched on: the same weights and modules."""

    def __init__(self, network: Any, layers: Sequence[Any]) -> None:
        self._network = network
        self._layers = layers  # diffusers' own blocks

    def forward(self, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        """As the network's own."""
        kwargs.pop("attention_kwargs", None)
        output = self.predict(*args, **kwargs)
        return Transformer2DModelOutput(sample=output) if return_dict else (output,)

    @abstractmethod
    def predict(self, *args: Any, **kwargs: Any) -> Tensor:
        """One pass, with the other arguments of the network's own `forward`."""

    @abstractmethod
    def examples(self, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
        """Inputs of short passes with noise, for latents of about this many frames, rows and columns."""

    @abstractmethod
    def _kept(self) -> list[Memoized[Any]]:
        """What is remembered for the passes of a clip."""

    def run(self, inputs: dict[str, Any]) -> Tensor:
        """One pass of the network, fused if that is switched on."""
        out: Tensor = self._network(**inputs, return_dict=False)[0]
        return out

    def switch_on(self) -> None:
        self._network.forward = self.forward

    def switch_off(self) -> None:
        """Restore the network, and release what was kept for the clip: adapters may change the weights."""
        self._network.__dict__.pop("forward", None)
        for one in self._kept():
            one.clear()

    @property
    def has_hooks(self) -> bool:
        """Whether diffusers has replaced forward passes itself, as its step caches do."""
        registries = (getattr(one, "_diffusers_hook", None) for one in (self._network, *self._layers))
        return any(registry is not None and registry.hooks for registry in registries)

    def _noise(self, sizes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Inputs of these shapes, the same at every call."""
        weight = self._network.proj_out.weight
        draw = torch.Generator().manual_seed(0)
        return {
            name: torch.randn(size, generator=draw, device="cpu").to(weight.device, weight.dtype)
            for name, size in sizes.items()
        }


def has_plain_weights(blocks: Sequence[nn.Module]) -> bool:
    """Whether all linear layers have a bias and weights of the usual kind. Quantised blocks have none."""
    layers = [layer for block in blocks for layer in block.modules() if isinstance(layer, nn.Linear)]
    return bool(layers) and all(
        type(layer.weight.data) is Tensor and layer.bias is not None for layer in layers
    )


def attend_to_clip(attn: Any, normal: Tensor, rotation: RotaryTables, attention: Attention) -> Tensor:
    """Self-attention of a block, with normed and rotated queries and keys."""
    weights = (attn.norm_q.weight, attn.norm_k.weight)
    query, key = norm_and_rotate(attn.to_q(normal), attn.to_k(normal), weights, rotation, attn.norm_q.eps)
    three = [by_head(one, attn.heads) for one in (query, key, attn.to_v(normal))]
    out: Tensor = attn.to_out[0](attention(*three).flatten(2, 3))
    return out


def by_head(given: Tensor, heads: int) -> Tensor:
    return given.view(*given.shape[:2], heads, -1)


def feed_forward(given: Tensor, layers: Any) -> Tensor:
    """A FeedForward of diffusers with GELU, approximated by tanh, in the epilogue of its first product."""
    out: Tensor = layers[2](gelu_of_product(given, layers[0].proj))
    return out


def gelu_of_product(given: Tensor, layer: nn.Linear) -> Tensor:
    """GELU, approximated by tanh, of a linear layer."""
    if not given.is_cuda:
        return functional.gelu(layer(given), approximate="tanh")
    flat = torch._addmm_activation(  # noqa: SLF001 - cuBLASLt applies it before the product is rounded
        layer.bias, given.flatten(0, 1), layer.weight.t(), use_gelu=True
    )
    return flat.view(*given.shape[:2], -1)
