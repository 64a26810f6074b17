"""Attention without a mask: torch's own, or flash-attn-4 where it is installed and faster.

flash-attn-4 is an optional dependency, the extra `flash`. It compiles its kernels on first use.
"""

import os
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from filmgate.pipeline.launch import on_gpu_of
from filmgate.pipeline.trials import (
    Candidate,
    Trial,
    cache_folder,
    choose,
    machine_key,
    relative_error,
    time_both,
)

FLASH_PACKAGE = "flash-attn-4"
# About a clip at 480p. At a quarter of it, the launch of flash-attn-4 takes longer than its work.
TRIAL_TOKENS = 32_768
CHECK_TOKENS = 8192
# Tiles that are faster than the package's own choice, by generation and head size, measured at 32,760 tokens
# and 12 heads: 703 TFLOP/s instead of 687 on one H200. Smaller tiles, at 679, are for what is left of the
# queries when the larger ones have filled the GPU. The result is the same, bit for bit.
TILES: dict[tuple[int, int], dict[str, Any]] = {
    (9, 128): {"tile_mn": (192, 128), "mma_pv_is_rs": False, "intra_wg_overlap": True},
}
SMALL_TILES: dict[tuple[int, int], dict[str, Any]] = {(9, 128): {"tile_mn": (128, 128)}}
LARGE_TILE, SMALL_TILE = 192, 128
SMALL_TILE_COST = 1.035  # per query, relative to a large tile: 703 against 679 TFLOP/s on one H200
SECOND_LAUNCH_COST = 4.0  # in queries of a large tile: about 10 microseconds
MIN_GAIN = 0.005
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
    attend, tile_key = _flash_function(), _tile_key(query)
    large = TILES.get(tile_key, {})
    with on_gpu_of(query):
        if queries >= query.shape[1]:
            whole: Tensor = attend(query, key, value, **large)[0]
            return whole
        out = torch.empty_like(query)
        attend(query[:, :queries], key, value, out=out[:, :queries], **large)
        attend(query[:, queries:], key, value, out=out[:, queries:], **SMALL_TILES.get(tile_key, {}))
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
    if weight.device.type != "cuda" or not is_flash_installed():
        return torch_attention
    shape = (1, TRIAL_TOKENS, config.num_attention_heads, config.attention_head_dim)
    return flash_attention if choose(_candidate(shape, network.dtype, weight.device)) else torch_attention


def _candidate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Candidate:
    def draw() -> list[Tensor]:
        return [torch.randn(shape, device=device, dtype=dtype) for _ in range(3)]

    def error() -> float:
        few = [each[:, :CHECK_TOKENS] for each in draw()]
        expected = torch_attention(*few)
        ways = (flash_at_once, partial(flash_in_two, queries=LARGE_TILE))
        return max(relative_error(way(*few), expected) for way in ways)

    def trial() -> Trial:
        given = draw()
        return time_both(partial(flash_attention, *given), partial(torch_attention, *given), device)

    *_, heads, size = shape
    key = f"attention, {heads} heads of {size}, {dtype}, {machine_key(device, FLASH_PACKAGE)}"
    return Candidate(FLASH_PACKAGE, error, MAX_ERROR, key, trial)


@cache
def queries_in_large_tiles(queries: int, heads: int, processors: int) -> int:
    """The number of queries to run in large tiles; the rest run in small ones. Often all of them.

    flash-attn-4 starts one program per head and tile of queries, and each multiprocessor runs one at a time.
    At 32,760 queries and 12 heads, tiles of 192 queries take 15.5 waves of 132 multiprocessors, so the
    sixteenth wave is half empty. Smaller tiles for the last queries make that wave shorter.
    """
    whole = ceil(queries / LARGE_TILE)
    costs = {large: _cost(queries, large, heads, processors) for large in range(1, whole + 1)}
    best = min(costs, key=lambda large: (costs[large], -large))
    return best * LARGE_TILE if best < whole and costs[best] < (1 - MIN_GAIN) * costs[whole] else queries


def _cost(queries: int, large: int, heads: int, processors: int) -> float:
    """The time of the waves of both launches, in queries of a large tile."""
    rest = max(queries - large * LARGE_TILE, 0)
    cost = float(ceil(large * heads / processors) * LARGE_TILE)
    if rest:
        small = ceil(rest / SMALL_TILE)
        cost += ceil(small * heads / processors) * SMALL_TILE * SMALL_TILE_COST + SECOND_LAUNCH_COST
    return cost
