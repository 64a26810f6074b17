"""The denoiser's weights in eight bits: half their memory, at a stated error. Arithmetic stays in `dtype`.

Each row of a weight has its own scale. A product restores the weight first. Every weight serves thousands of
tokens, so that takes little of a pass; it saves memory, not time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from filmgate.errors import SettingsError

Network = Any
"""A diffusers model; diffusers ships no types."""
Weights = Literal["full", "int8", "fp8"]
FORMATS: Mapping[Weights, torch.dtype] = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
BLOCKS = ("blocks", "transformer_blocks", "single_transformer_blocks")
"""The lists of repeated blocks, which hold nearly all weights. What is outside them keeps its precision."""
_MAX = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


class QuantizedLinear(torch.nn.Module):
    """A linear layer with weights in eight bits."""

    def __init__(self, layer: torch.nn.Linear, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        home = layer.weight.device
        quantized, scales = quantize(layer.weight.data.to(device), dtype)
        self.quantized = torch.nn.Parameter(quantized.to(home), requires_grad=False)
        self.scales = torch.nn.Parameter(scales.to(home), requires_grad=False)
        self.bias = layer.bias

    def forward(self, given: Tensor) -> Tensor:
        return functional.linear(given, self.read_weight().to(given.dtype), self.bias)

    def read_weight(self) -> Tensor:
        """The weight in float32."""
        return self.quantized.float() * self.scales

    def write_weight(self, weight: Tensor) -> None:
        """Replace the weight in the same tensors."""
        quantized, scales = quantize(weight, self.quantized.dtype)
        self.quantized.data.copy_(quantized)
        self.scales.data.copy_(scales)


def quantize(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The weight in eight bits, and the scale of each row in float32."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / _MAX[dtype]
    scaled = weight / scales
    return (scaled.round() if dtype is torch.int8 else scaled).to(dtype), scales


def quantize_blocks(networks: Sequence[Network], weights: Weights, device: torch.device) -> None:
    """Quantise every linear layer of the repeated blocks, computed on `device`, stored where it was.

    Raises SettingsError if there is none, as in a U-Net.
    """
    if weights == "full":
        return
    found = [each for network in networks for each in _linear_layers(network)]
    if not found:
        raise SettingsError(
            f"{weights} needs transformer blocks, which this model does not have; set it to full",
            option="pipeline.weights",
        )
    for parent, name, layer in found:
        setattr(parent, name, QuantizedLinear(layer, FORMATS[weights], device))


def stored_tensors(layer: torch.nn.Module) -> tuple[Tensor, ...]:
    """The tensors that hold the weight of a layer, quantised or not."""
    if isinstance(layer, QuantizedLinear):
        return layer.quantized.data, layer.scales.data
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return (weight.data,)


def read_weight(layer: torch.nn.Module) -> Tensor:
    """The weight of a layer in float32, quantised or not."""
    return layer.read_weight() if isinstance(layer, QuantizedLinear) else stored_tensors(layer)[0].float()


def write_weight(layer: torch.nn.Module, weight: Tensor) -> None:
    """Replace the weight of a layer in the same tensors, so that compiled blocks stay valid."""
    if isinstance(layer, QuantizedLinear):
        layer.write_weight(weight)
    else:
        stored_tensors(layer)[0].copy_(weight)


def is_quantized(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor of a denoiser's file is the weight of a layer that `quantize_blocks` replaces."""
    return len(shape) == 2 and name.endswith(".weight") and name.partition(".")[0] in BLOCKS


def _linear_layers(network: Network) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Linear]]:
    for blocks in (getattr(network, name, None) for name in BLOCKS):
        for parent in blocks.modules() if isinstance(blocks, torch.nn.ModuleList) else ():
            for name, layer in parent.named_children():
                if type(layer) is torch.nn.Linear:
                    yield parent, name, layer
