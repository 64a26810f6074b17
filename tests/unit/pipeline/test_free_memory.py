"""Which requests to torch's allocator get all of its free memory."""

import torch

from filmgate.pipeline.wipe import SMALL_BYTES, FreeBlock, find_free_blocks, overwrite_free_memory

MIB = 1 << 20


def make_segment(kind, stream, *blocks, device=0, pool=(0, 0)):
    """As in `torch.cuda.memory_snapshot()`; blocks are (state, size)."""
    return {
        "device": device,
        "stream": stream,
        "segment_type": kind,
        "segment_pool_id": pool,
        "total_size": sum(size for _, size in blocks),
        "blocks": [{"state": state, "size": size} for state, size in blocks],
    }


def test_every_free_block_of_every_stream_is_asked_for_by_its_exact_size():
    segments = [
        make_segment("large", 0, ("active_allocated", 3 * MIB), ("inactive", 17 * MIB)),
        make_segment("large", 7, ("inactive", 20 * MIB)),
        make_segment("large", 7, ("active_pending_free", 4 * MIB), ("inactive", MIB + 512)),
        make_segment("small", 7, ("inactive", 512), ("active_allocated", 2 * MIB - 512)),
    ]
    assert find_free_blocks(segments, 0) == [
        FreeBlock(7, 20 * MIB),
        FreeBlock(0, 17 * MIB),
        FreeBlock(7, MIB + 512),
        FreeBlock(7, 512),
    ]


def test_a_free_small_segment_takes_requests_that_are_served_from_small_segments():
    segments = [
        make_segment("small", 0, ("inactive", 2 * MIB)),
        make_segment("small", 0, ("inactive", MIB + 512)),
    ]
    asked = [block.byte_count for block in find_free_blocks(segments, 0)]
    assert asked == [MIB, MIB, MIB, 512]
    assert max(asked) == SMALL_BYTES


def test_memory_of_other_devices_and_of_private_pools_is_left_alone():
    segments = [
        make_segment("large", 0, ("inactive", 2 * MIB), device=1),
        make_segment("large", 0, ("inactive", 2 * MIB), pool=(0, 1)),
    ]
    assert find_free_blocks(segments, 0) == []


def test_a_cpu_has_no_caching_allocator():
    assert overwrite_free_memory(torch.device("cpu")) == 0
