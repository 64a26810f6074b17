"""Which requests to torch's allocator get all of its free memory, and when it is overwritten."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from filmgate.pipeline import wipe
from filmgate.pipeline.wipe import (
    SMALL_BYTES,
    DeviceMemory,
    FreeBlock,
    find_free_blocks,
    overwrite_free_memory,
)

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


class FakeGpu:
    """Free memory by stream. A job that prepares leaves its content in that of its stream."""

    def __init__(self):
        self.memory = DeviceMemory(torch.device("cuda"))
        self.free = {stream: torch.zeros(4) for stream in (1, 2)}
        self.stream = 1
        self.whole_overwrites = 0

    @contextmanager
    def hold(self, _device, only_stream):
        yield [(stream, block) for stream, block in self.free.items() if stream == only_stream]

    def overwrite(self, _device):
        self.whole_overwrites += 1
        for block in self.free.values():
            block.zero_()

    def prepare(self, tenant, stream):
        """Returns what the job finds in the memory that it gets."""
        self.stream = stream
        self.memory.prepare_for(tenant)
        found = {chr(int(value)) for value in self.free[stream] if value}
        self.free[stream].fill_(ord(tenant))
        return found


@pytest.fixture
def gpu(monkeypatch):
    fake = FakeGpu()
    monkeypatch.setattr(wipe, "held_free_memory", fake.hold)
    monkeypatch.setattr(wipe, "overwrite_free_memory", fake.overwrite)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda _device: SimpleNamespace(cuda_stream=fake.stream)
    )
    return fake


def test_a_job_that_is_prepared_and_never_runs_leaves_nothing_to_the_owner_of_the_device(gpu):
    gpu.prepare("A", stream=1)
    gpu.memory.switch_owner("A")
    assert gpu.prepare("B", stream=2) == set(), "it is cancelled before its turn"
    assert gpu.prepare("A", stream=2) == set()
    gpu.memory.switch_owner("A")
    assert gpu.whole_overwrites == 1, "the device has had one tenant"


def test_a_stream_whose_last_job_was_of_the_same_tenant_is_not_overwritten(gpu):
    gpu.prepare("A", stream=1)
    gpu.memory.switch_owner("A")
    gpu.prepare("A", stream=1)
    assert gpu.prepare("A", stream=1) == {"A"}
    gpu.prepare("B", stream=2)
    gpu.memory.switch_owner("A")
    assert gpu.prepare("B", stream=2) == {"B"}, "another job of A overwrites nothing and forgets nothing"


def test_when_the_device_changes_hands_all_streams_are_overwritten_and_belong_to_the_new_owner(gpu):
    gpu.memory.switch_owner("A")
    gpu.prepare("A", stream=1)
    gpu.prepare("B", stream=2)
    gpu.memory.switch_owner("B")
    assert not gpu.free[1].any()
    gpu.free[1].fill_(ord("B"))
    assert gpu.prepare("A", stream=1) == set(), "A has prepared there before B had the device"
