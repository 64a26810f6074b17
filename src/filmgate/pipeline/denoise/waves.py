"""How an attention kernel fills the GPU: its last wave of tiles may leave most multiprocessors idle.

flash-attn-4 starts one program per head and tile of queries, and each multiprocessor runs one at a time. At
32,760 queries and 12 heads, tiles of 192 queries take 15.5 waves of 132 multiprocessors, so the sixteenth
wave is half empty. Smaller tiles for the last queries make that wave shorter.
"""

from functools import cache
from math import ceil

LARGE_TILE, SMALL_TILE = 192, 128
SMALL_TILE_COST = 1.035  # per query, relative to a large tile: 703 against 679 TFLOP/s on one H200
SECOND_LAUNCH_COST = 4.0  # in queries of a large tile: about 10 microseconds
MIN_GAIN = 0.005


@cache
def queries_in_large_tiles(queries: int, heads: int, processors: int) -> int:
    """The number of queries to run in large tiles; the rest run in small ones. Often all of them."""
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
