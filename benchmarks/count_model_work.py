"""Counts the FLOPs and bytes of video models and compares them with the catalog. No GPU is needed.

Each network is built in its released configuration on torch's meta device and run once. Matrix products and
convolutions are counted by torch's counter, attention as 2 x queries x keys x (head width twice), and traffic
as the bytes that every eager operator except views reads and writes. Peak memory is the sum of live tensors
and, during a convolution, the channels-last copies of its input and output that cuDNN makes. Prints one JSON
line per network.
"""

import json
import weakref
from collections.abc import Callable
from typing import Any

import torch
from diffusers import (
    AutoencoderKLCogVideoX,
    AutoencoderKLHunyuanVideo,
    AutoencoderKLLTXVideo,
    AutoencoderKLWan,
    CogVideoXTransformer3DModel,
    HunyuanVideoTransformer3DModel,
    LTXVideoTransformer3DModel,
    WanTransformer3DModel,
)
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from filmgate.catalog.loader import load_catalog
from filmgate.jobs import Size
from filmgate.pipeline.bench.provenance import provenance
from filmgate.planner.video.clip import clip_for
from filmgate.planner.video.memory import Placement, decode_bytes
from filmgate.planner.video.work import Work, decode_work, forward_work

VIEWS = {
    "view", "_unsafe_view", "reshape", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice",
    "select", "split", "chunk", "t", "detach", "alias", "as_strided", "unbind", "split_with_sizes",
    "empty", "_reshape_alias", "lift_fresh", "unflatten", "empty_like", "empty_strided", "unsafe_split",
    "view_as_complex", "view_as_real", "movedim", "new_empty",
}  # fmt: skip


BLOCKS = 32  # thread blocks of a GroupNorm with 32 groups and one clip: one per group


class Traffic(TorchDispatchMode):
    """Sums the input and output bytes of every operator and tracks live tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.attention_flops = 0
        self.norm_values = 0.0
        self.peak_bytes = 0
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.bytes += tensor_bytes(args) + tensor_bytes((kwargs or {}).values()) + tensor_bytes([result])
        if name == "native_group_norm":
            batch, groups = args[3], args[6]
            self.norm_values += args[0].numel() * BLOCKS / (batch * groups)
        self._track(result)
        copies = tensor_bytes([args[0], result]) if name == "convolution" else 0
        self.peak_bytes = max(self.peak_bytes, sum(self._alive.values()) + copies)
        return result

    def _track(self, result: Any) -> None:
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                handle = storage._cdata  # noqa: SLF001 - a meta tensor has no address to identify it
                if handle not in self._alive:
                    self._alive[handle] = storage.nbytes()
                    weakref.finalize(storage, self._alive.pop, handle, None)

    def attend(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Replaces attention: no N x N matrix is built or counted as traffic."""
        batch, heads, queries, width = query.shape
        self.attention_flops += 2 * batch * heads * queries * key.shape[2] * (width + value.shape[3])
        return torch.empty(*query.shape[:-1], value.shape[-1], dtype=query.dtype, device=query.device)


def tensor_bytes(values: Any) -> int:
    """An expanded tensor counts at most the bytes of its storage."""
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += min(value.numel() * value.element_size(), value.untyped_storage().nbytes())
        elif isinstance(value, list | tuple):
            total += tensor_bytes(value)
    return total


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def count(make: Callable[[], torch.nn.Module], call: Callable[[torch.nn.Module], object]) -> dict[str, float]:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        network = make().eval()
    torch.set_default_dtype(torch.float32)
    traffic, flops = Traffic(), FlopCounterMode(display=False)
    original = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = traffic.attend
    try:
        with torch.no_grad(), flops, traffic:
            call(network)
    finally:
        functional.scaled_dot_product_attention = original
    total = flops.get_total_flops() + traffic.attention_flops
    return {
        "tflop": total / 1e12,
        "traffic_gb": traffic.bytes / 1e9,
        "peak_gb": traffic.peak_bytes / 1e9,
        "norm_values": traffic.norm_values / 1e9,
    }


def wan_forward(network: torch.nn.Module) -> object:
    return network(
        meta(1, 16, 21, 60, 104), torch.empty(1, device="meta"), meta(1, 512, 4096), return_dict=False
    )


def ltx_forward(network: torch.nn.Module) -> object:
    tokens = {"num_frames": 16, "height": 15, "width": 26, "rope_interpolation_scale": (8 / 25, 32, 32)}
    return network(meta(1, 6240, 128), meta(1, 128, 4096), meta(1), meta(1, 128), return_dict=False, **tokens)


def cog_forward(network: torch.nn.Module) -> object:
    return network(meta(1, 13, 16, 60, 90), meta(1, 226, 4096), meta(1), return_dict=False)


def hunyuan_forward(network: torch.nn.Module) -> object:
    latents, text, mask = meta(1, 16, 31, 60, 104), meta(1, 256, 4096), meta(1, 256)
    return network(latents, meta(1), text, mask, meta(1, 768), meta(1), return_dict=False)


def decode(*shape: int) -> Callable[[Any], object]:
    return lambda vae: vae.decode(meta(*shape), return_dict=False)


def small_wan() -> torch.nn.Module:
    return WanTransformer3DModel(num_attention_heads=12, ffn_dim=8960, num_layers=30)


SUBJECTS: tuple[tuple[str, str, tuple[int, int, int], Any, Any], ...] = (
    ("wan2.1-t2v-1.3b", "forward", (832, 480, 81), small_wan, wan_forward),
    ("wan2.1-t2v-14b", "forward", (832, 480, 81), WanTransformer3DModel, wan_forward),
    ("ltx-video-2b-0.9.0", "forward", (832, 480, 121), LTXVideoTransformer3DModel, ltx_forward),
    ("cogvideox-2b", "forward", (720, 480, 49), CogVideoXTransformer3DModel, cog_forward),
    ("hunyuanvideo", "forward", (832, 480, 121), HunyuanVideoTransformer3DModel, hunyuan_forward),
    ("wan2.1-t2v-14b", "decode", (832, 480, 81), AutoencoderKLWan, decode(1, 16, 21, 60, 104)),
    ("ltx-video-2b-0.9.0", "decode", (832, 480, 121), AutoencoderKLLTXVideo, decode(1, 128, 16, 15, 26)),
    ("cogvideox-2b", "decode", (720, 480, 49), AutoencoderKLCogVideoX, decode(1, 16, 13, 60, 90)),
    ("hunyuanvideo", "decode", (640, 640, 129), AutoencoderKLHunyuanVideo, decode(1, 16, 33, 80, 80)),
)


def main() -> None:
    catalog, commit = load_catalog(), provenance()["commit"]
    for name, stage, (width, height, frames), make, call in SUBJECTS:
        model = catalog.video_model(name)
        clip = clip_for(model, size=Size(width, height), frames=frames)
        work: Work = forward_work(model, clip) if stage == "forward" else decode_work(model, clip)
        counted = count(make, call)
        row = {
            "commit": commit,
            "model": name,
            "stage": stage,
            "shape": f"{width}x{height}x{frames}",
            **counted,
        }
        row["catalog_to_counted_flops"] = round(work.flops / 1e12 / counted["tflop"], 4)
        row["catalog_to_counted_traffic"] = round(work.traffic_bytes / 1e9 / counted["traffic_gb"], 4)
        if stage == "decode":
            peak = decode_bytes(model, clip, Placement())
            row["catalog_to_counted_peak"] = round(peak / 1e9 / counted["peak_gb"], 4)
        if counted["norm_values"]:
            row["catalog_to_counted_norms"] = round(work.norm_values / 1e9 / counted["norm_values"], 4)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
