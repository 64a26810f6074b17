"""LoRA adapters on a loaded model: what they add to the denoiser's layers is written in place.

The parameters stay the same tensors, so compiled blocks need not be compiled again, and a pass costs what it
costs without an adapter.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from filmgate.errors import UsageError
from filmgate.models.adapters import ChosenAdapter, parse_adapters
from filmgate.pipeline.loading.adapter_files import Adapter, find_layer, read_adapter
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.memory import Offload
from filmgate.pipeline.loading.quantization import read_weight, stored_tensors, write_weight
from filmgate.pipeline.memory_errors import out_of_memory_as

FindAdapter = Callable[[str], Sequence[Path]]
"""The files of an adapter, by its name: one for each denoiser that it changes, the main one first."""


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
        self._active: tuple[ChosenAdapter, ...] | None = ()  # None: a switch has failed midway

    def switch(self, lora: str | None) -> None:
        """Use exactly these adapters for the next clip. Raises ModelError, UsageError and OutOfMemory."""
        chosen = parse_adapters(lora or "")
        if chosen == self._active:
            return
        if chosen and self._model.placement.offload is Offload.LAYERS:
            raise UsageError(
                "adapters need weights in memory; set pipeline.offload to none or model", option="lora"
            )
        adapters = [
            (self._cache.get(each.name, self._model), 1.0 if each.scale is None else each.scale)
            for each in chosen
        ]
        wanted = {path for adapter, _ in adapters for path in adapter.layers}
        self._active = None
        self._changed |= wanted
        with out_of_memory_as(
            "there is not enough GPU memory to add the adapter to the weights; "
            "set pipeline.offload to model, or use a GPU with more memory"
        ):
            for path in self._changed:
                self._write(path, adapters)
        self._changed = wanted
        self._active = chosen

    @torch.no_grad()
    def _write(self, path: str, adapters: Sequence[tuple[Adapter, float]]) -> None:
        layer = find_layer(self._model, path)
        bias = getattr(layer, "bias", None)
        stored = (*stored_tensors(layer), *([] if bias is None else [bias.data]))
        if path not in self._originals:
            self._originals[path] = tuple(each.to("cpu", copy=True) for each in stored)
        for each, original in zip(stored, self._originals[path], strict=True):
            each.copy_(original)
        if any(path in adapter.factors for adapter, _ in adapters):
            write_weight(layer, _add_products(read_weight(layer), path, adapters))
        for adapter, scale in adapters:
            if bias is not None and path in adapter.biases:
                bias.data += scale * adapter.biases[path].to(bias.device)


def _add_products(weight: Tensor, path: str, adapters: Sequence[tuple[Adapter, float]]) -> Tensor:
    for adapter, scale in adapters:
        if path in adapter.factors:
            down, up, own_scale = adapter.factors[path]
            up, down = (each.to(weight.device, torch.float32).flatten(1) for each in (up, down))
            weight = weight + scale * own_scale * (up @ down).view(weight.shape)
    return weight
