"""LoRA adapters on a loaded model: their weights are added to the denoiser in place and taken out again.

The parameters stay the same tensors, so compiled blocks need not be compiled again, and a pass costs what it
costs without an adapter.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from filmgate.errors import ModelError, UsageError
from filmgate.models.adapters import parse_adapters
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.loading.quantization import read_weight, stored_tensors, write_weight

_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True, slots=True)
class Adapter:
    """The factors of every changed weight: its path in the pipeline -> (down, up), in host memory."""

    factors: Mapping[str, tuple[Tensor, Tensor]]

    @property
    def size_bytes(self) -> int:
        return sum(down.nbytes + up.nbytes for down, up in self.factors.values())


FindAdapter = Callable[[str], Path]


class AdapterCache:
    """Adapters that were read, in host memory, bounded in bytes; the least recently used is dropped first."""

    def __init__(self, find: FindAdapter, max_bytes: int) -> None:
        self._find = find
        self._max_bytes = max_bytes
        self._read: OrderedDict[tuple[str, str], Adapter] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return sum(adapter.size_bytes for adapter in self._read.values())

    def get(self, name: str, model: VideoModel) -> Adapter:
        """The adapter, read if necessary. Raises ModelError if it does not fit the model."""
        key = (model.name, name)
        if key not in self._read:
            self._read[key] = read_adapter(self._find(name), model)
        self._read.move_to_end(key)
        while self.size_bytes > self._max_bytes and len(self._read) > 1:
            self._read.popitem(last=False)
        return self._read[key]


class AdapterSwitch:
    """Puts adapters into one model, and takes them out. Keeps the weights it changed in host memory."""

    def __init__(self, model: VideoModel, cache: AdapterCache) -> None:
        self._model = model
        self._cache = cache
        self._originals: dict[str, tuple[Tensor, ...]] = {}
        self._changed: set[str] = set()
        self._active: str | None = None

    def switch(self, lora: str | None) -> None:
        """Use exactly these adapters for the next clip. Raises ModelError and UsageError."""
        if lora == self._active:
            return
        chosen = parse_adapters(lora or "")
        if chosen and self._model.placement.offload is Offload.LAYERS:
            raise UsageError(
                "adapters need weights in memory; set pipeline.offload to none or model", option="lora"
            )
        adapters = [
            (self._cache.get(each.name, self._model), 1.0 if each.scale is None else each.scale)
            for each in chosen
        ]
        self._active = None  # until every weight is written
        changed = {path for adapter, _ in adapters for path in adapter.factors}
        for path in self._changed | changed:
            self._write(path, adapters)
        self._changed = changed
        self._active = lora

    @torch.no_grad()
    def _write(self, path: str, adapters: Sequence[tuple[Adapter, float]]) -> None:
        layer = _layer_of(self._model, path)
        stored = stored_tensors(layer)
        if path not in self._originals:
            self._originals[path] = tuple(each.to("cpu", copy=True) for each in stored)
        for each, original in zip(stored, self._originals[path], strict=True):
            each.copy_(original)
        parts = [(adapter.factors[path], scale) for adapter, scale in adapters if path in adapter.factors]
        if not parts:
            return
        total = read_weight(layer)
        for (down, up), scale in parts:
            product = up.to(total.device, torch.float32) @ down.to(total.device, torch.float32)
            total = total + scale * product.view(total.shape)
        write_weight(layer, total)


def read_adapter(path: Path, model: VideoModel) -> Adapter:
    """The adapter in a safetensors file, in any layout that diffusers converts. Raises ModelError."""
    file = _find_file(path)
    try:
        weights = load_file(file)
        convert = getattr(model.pipe, "lora_state_dict", None)
        weights = convert(weights) if convert is not None else weights
    except (OSError, SafetensorError, ValueError) as exc:
        raise ModelError(f"the adapter {file.name} cannot be read: {exc}") from exc
    downs = {key.removesuffix(_DOWN): value for key, value in weights.items() if key.endswith(_DOWN)}
    factors = {base: (down, weights[base + _UP]) for base, down in downs.items() if base + _UP in weights}
    if not factors or len(factors) < len(downs):
        raise ModelError(f"the adapter {file.name} has no pairs of LoRA weights")
    for base, (down, up) in factors.items():
        weight = stored_tensors(_layer_of(model, base))[0]
        if up.shape[0] * down[0].numel() != weight.numel():
            raise ModelError(f"the adapter {file.name} does not fit {model.name}: {base} has another shape")
    return Adapter(factors)


def _find_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("*.safetensors"))
    if len(files) != 1:
        raise ModelError(f"{path} must be a safetensors file, or a folder with exactly one")
    return files[0]


def _layer_of(model: VideoModel, path: str) -> torch.nn.Module:
    """A layer with a weight, such as `transformer.blocks.0.attn1.to_q`."""
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
