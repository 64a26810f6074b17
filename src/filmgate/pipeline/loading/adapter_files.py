"""LoRA adapters in safetensors files, in any layout that diffusers converts."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from filmgate.errors import ModelError
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.quantization import stored_tensors
from filmgate.telemetry.logs import Log

_DOWN, _UP, _BIAS = ".lora_A.weight", ".lora_B.weight", ".lora_B.bias"
_METADATA = "lora_adapter_metadata"
"""Where diffusers keeps the configuration of an adapter in the header of its file."""
T = TypeVar("T")
_log = Log("adapters")


class Factors(NamedTuple):
    """An adapter adds `scale * (up @ down)` to a weight."""

    down: Tensor
    up: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """What an adapter adds to each layer, by the layer's path in the pipeline, in host memory."""

    factors: Mapping[str, Factors]
    biases: Mapping[str, Tensor]

    @property
    def layers(self) -> set[str]:
        return {*self.factors, *self.biases}

    @property
    def size_bytes(self) -> int:
        factors = sum(down.nbytes + up.nbytes for down, up, _ in self.factors.values())
        return factors + sum(bias.nbytes for bias in self.biases.values())


def read_adapter(places: Sequence[Path], model: VideoModel) -> Adapter:
    """The adapter in these places: one for each denoiser that it changes, the main one first.

    Raises ModelError if a file cannot be read, does not fit the model, or contains unknown weights.
    """
    components = [name for name in model.family.denoisers if model.pipe.components.get(name) is not None]
    if len(places) > len(components):
        raise ModelError(
            f"the adapter has {len(places)} files, but {model.name} reads at most {len(components)}, one for "
            "each denoiser"
        )
    factors: dict[str, Factors] = {}
    biases: dict[str, Tensor] = {}
    for component, place in zip(components, places, strict=False):
        read = _read_file(_find_file(place), model)
        factors |= _renamed(read.factors, components[0], component)
        biases |= _renamed(read.biases, components[0], component)
    adapter = Adapter(factors, biases)
    for path in adapter.layers:
        if not _fits(find_layer(model, path), factors.get(path), biases.get(path)):
            raise ModelError(f"the adapter does not fit {model.name}: {path[:100]} has another shape")
    return adapter


def find_layer(model: VideoModel, path: str) -> torch.nn.Module:
    """A layer of a denoiser, such as `transformer.blocks.0.attn1.to_q`. Raises ModelError."""
    component, _, layer = path.partition(".")
    networks = {name: model.pipe.components.get(name) for name in model.family.denoisers}
    if networks.get(component) is None:
        raise ModelError(f"an adapter changes {component[:40]}, which is not a denoiser of {model.name}")
    try:
        found: torch.nn.Module = networks[component].get_submodule(layer)
        stored_tensors(found)
    except AttributeError as exc:
        raise ModelError(f"an adapter changes {path[:100]}, which {model.name} does not have") from exc
    return found


def _find_file(place: Path) -> Path:
    if place.is_file():
        return place
    files = sorted(place.glob("*.safetensors"))
    if len(files) != 1:
        raise ModelError(f"{place.name} must be a safetensors file, or a folder with exactly one")
    return files[0]


def _renamed(layers: Mapping[str, T], main: str, component: str) -> dict[str, T]:
    """The layers of another denoiser. Its file names them like those of the main one."""
    return {re.sub(rf"^{main}\.", f"{component}.", path): value for path, value in layers.items()}


def _read_file(file: Path, model: VideoModel) -> Adapter:
    try:
        return _parse(file, *_load(file, model))
    # diffusers and PEFT expect certain names and values.
    except (OSError, SafetensorError, ValueError, TypeError, ArithmeticError, LookupError, re.error) as exc:
        raise ModelError(f"the adapter {file.name} cannot be read: {exc}") from exc


def _load(file: Path, model: VideoModel) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """The weights in the layout of diffusers, and PEFT's configuration if the header has one."""
    with safe_open(file, framework="pt") as opened:
        weights = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        header = dict(json.loads((opened.metadata() or {}).get(_METADATA, "{}")))
    if any("dora_scale" in key for key in weights):
        raise ModelError(f"the adapter {file.name} is a DoRA, which Filmgate does not support")
    converted = getattr(model.pipe, "lora_state_dict", dict)(dict(weights))
    used = {value.data_ptr() for value in converted.values()}
    ignored = [key for key, value in weights.items() if ".diff" in key and value.data_ptr() not in used]
    if any(weights[key].any() for key in ignored):
        _log.warning(
            f"diffusers ignores {len(ignored)} weights of the adapter {file.name}, such as {ignored[0][:100]}"
        )
    return converted, header


def _parse(file: Path, weights: Mapping[str, Tensor], header: Mapping[str, Any]) -> Adapter:
    downs, ups, biases = (
        {key.removesuffix(end): value for key, value in weights.items() if key.endswith(end)}
        for end in (_DOWN, _UP, _BIAS)
    )
    if unknown := [key for key in weights if not key.endswith((_DOWN, _UP, _BIAS))]:
        raise ModelError(
            f"the adapter {file.name} has weights that Filmgate cannot use, such as {unknown[0][:100]}"
        )
    if not downs or downs.keys() != ups.keys():
        raise ModelError(f"the adapter {file.name} has no pairs of LoRA weights")
    scales = {path: _scale_of(path, len(down), header) for path, down in downs.items()}
    return Adapter(
        {path: Factors(down, ups[path], scales[path]) for path, down in downs.items()},
        {path: scales.get(path, 1.0) * bias.float() for path, bias in biases.items()},
    )


def _scale_of(path: str, rank: int, header: Mapping[str, Any]) -> float:
    """The scale that PEFT gives a layer: alpha by rank. Without a configuration, alpha is the rank."""
    component, _, layer = path.partition(".")
    config = {key.removeprefix(f"{component}."): value for key, value in header.items()}
    patterns = config.get("alpha_pattern") or {}
    matching = (alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", layer))
    alpha = next(matching, config.get("lora_alpha", rank))
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def _fits(layer: torch.nn.Module, factors: Factors | None, bias: Tensor | None) -> bool:
    weight, own_bias = stored_tensors(layer)[0], getattr(layer, "bias", None)
    if bias is not None and (own_bias is None or own_bias.shape != bias.shape):
        return False
    if factors is None:
        return True
    down, up, _ = factors
    if min(down.ndim, up.ndim) < 2:
        return False
    shape = (up.shape[0], up[0].numel(), down[0].numel())
    return shape == (weight.shape[0], down.shape[0], weight[0].numel())
