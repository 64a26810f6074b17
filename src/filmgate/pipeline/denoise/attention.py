"""Attention without a mask: torch's own, or flash-attn-4 where it is installed and faster.

flash-attn-4 is an optional dependency, the extra `flash`. It compiles its kernels on first use.
"""

import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from filmgate.pipeline.denoise.waves import LARGE_TILE, queries_in_large_tiles
from filmgate.pipeline.kernel_cache import cache_folder
from filmgate.pipeline.trials import machine_key, time_both, wins_trial
from filmgate.telemetry.logs import Log

log = Log("attention")

# About a clip at 480p. At a quarter of it, the launch of flash-attn-4 takes longer than its work.
TRIAL_TOKENS = 32_768
CHECK_TOKENS = 8192
# Tiles that are faster than the package's own choice, by generation and head size, measured at 32,760 tokens
# and 12 heads: 703 TFLOP/s instead of 687 on one H200. Smaller tiles, at 679, are for what is left of the
# queries when the larger ones have filled the GPU (see waves.py). The result is the same, bit for bit.
TILES: dict[tuple[int, int], dict[str, Any]] = {
    (9, 128): {"tile_mn": (192, 128), "mma_pv_is_rs": False, "intra_wg_overlap": True},
}
SMALL_TILES: dict[tuple[int, int], dict[str, Any]] = {(9, 128): {"tile_mn": (128, 128)}}
MAX_ERROR = 0.01  # relative norm of the difference to torch's attention; 0.003 was measured in bfloat16

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values to outputs, each [batch, tokens, heads, head size]."""


def torch_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The kernel that torch selects."""
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)


@torch.library.custom_op("filmgate::flash_attention", mutates_args=())
def flash_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """flash-attn-4 as one operator, which torch.compile calls without looking inside."""
    batch, tokens, heads, _ = query.shape
    if batch > 1 or _tile_key(query) not in SMALL_TILES:
        return flash_at_once(query, key, value)
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    return flash_in_two(query, key, value, queries_in_large_tiles(tokens, heads, processors))


def flash_in_two(query: Tensor, key: Tensor, value: Tensor, queries: int) -> Tensor:
    """The first `queries` in large tiles, the others in small ones."""
    large = TILES.get(_tile_key(query), {})
    attend = _flash_function()
    if queries >= query.shape[1]:
        whole: Tensor = attend(query, key, value, **large)[0]
        return whole
    out = torch.empty_like(query)
    attend(query[:, :queries], key, value, out=out[:, :queries], **large)
    attend(query[:, queries:], key, value, out=out[:, queries:], **SMALL_TILES.get(_tile_key(query), {}))
    return out


def flash_at_once(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All queries in large tiles: what `flash_attention` is compared with."""
    return flash_in_two(query, key, value, query.shape[1])


def _tile_key(query: Tensor) -> tuple[int, int]:
    return torch.cuda.get_device_capability(query.device)[0], query.shape[-1]


@flash_attention.register_fake
def _(query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
    return query.new_empty(query.shape)


def is_flash_installed() -> bool:
    try:
        return find_spec("flash_attn.cute") is not None
    except ModuleNotFoundError:
        return False


@cache
def _flash_function() -> Any:
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")  # read at import
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(cache_folder() / "flash-attn-4"))
    from flash_attn.cute.interface import _flash_attn_fwd

    return _flash_attn_fwd  # flash_attn_func takes no tile


def choose_attention(network: Any) -> Attention:
    """flash-attn-4 if it is installed, agrees with torch's attention and is faster for these heads."""
    config, weight = network.config, next(network.parameters())
    heads, size = config.num_attention_heads, config.attention_head_dim
    if weight.device.type != "cuda" or not is_flash_installed():
        return torch_attention
    dtype = network.dtype
    key = f"attention, {heads} heads of {size}, {dtype}, {machine_key(weight.device, 'flash-attn-4')}"
    return (
        flash_attention
        if _wins(key, (1, TRIAL_TOKENS, heads, size), dtype, weight.device)
        else torch_attention
    )


@torch.inference_mode()
def _wins(key: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    query, keys, values = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
    few = tuple(one[:, :CHECK_TOKENS] for one in (query, keys, values))
    try:
        expected = torch_attention(*few).float()
        ways = (flash_at_once, partial(flash_in_two, queries=LARGE_TILE))
        error = max(_error(way(*few), expected) for way in ways)
        if not error <= MAX_ERROR:
            log.warning(
                "flash-attn-4 differs from torch's attention; not using it",
                relative_error=round(error, 4) if isfinite(error) else None,
            )
            return False
        fast, exact = (
            partial(flash_attention, query, keys, values),
            partial(torch_attention, query, keys, values),
        )
        return wins_trial(key, lambda: time_both(fast, exact, device))
    except torch.OutOfMemoryError:
        log.warning("not enough GPU memory to try flash-attn-4; using torch's attention")
    except Exception as exc:  # noqa: BLE001 - a package that compiles on this machine fails in many ways
        log.warning("flash-attn-4 failed; using torch's attention", error=exc)
    return False


def _error(found: Tensor, expected: Tensor) -> float:
    error = float((found.float() - expected).norm() / expected.norm())
    return error if isfinite(error) else inf
