"""How the queries of an attention are divided between large and small tiles."""

import pytest

from filmgate.pipeline.denoise.attention import LARGE_TILE, queries_in_large_tiles

H200 = 132  # multiprocessors


def test_the_queries_of_a_480p_clip_fill_fifteen_waves_and_the_rest_gets_small_tiles():
    queries = queries_in_large_tiles(32_760, 12, H200)
    assert queries == 31_680
    assert queries // LARGE_TILE * 12 == 15 * H200


@pytest.mark.parametrize(("queries", "heads"), [(75_600, 12), (32_760, 40), (8192, 12), (120, 12), (1, 1)])
def test_one_launch_is_enough_where_the_last_wave_is_nearly_full_or_there_is_only_one(queries, heads):
    assert queries_in_large_tiles(queries, heads, H200) == queries


@pytest.mark.parametrize("queries", range(1000, 40_000, 1777))
@pytest.mark.parametrize("processors", [78, 108, 114, 132, 148])
def test_the_first_part_is_whole_tiles_or_everything(queries, processors):
    first = queries_in_large_tiles(queries, 12, processors)
    assert first == queries or (0 < first < queries and first % LARGE_TILE == 0)
