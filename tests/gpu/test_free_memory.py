"""Nothing of one tenant's job is left in free GPU memory when the job of another tenant starts.

Run it with `pytest tests/gpu/test_free_memory.py -s --noconftest --override-ini addopts=`; it prints what it
measured.
"""

import sys
import time

import pytest
import torch

from filmgate.jobs import TenantId, VideoSpec
from filmgate.pipeline.bench.vaes import build_vae, random_latents
from filmgate.pipeline.canary import read_luma
from filmgate.pipeline.clip_writer import prepare
from filmgate.pipeline.decode.base import decode_frames
from filmgate.pipeline.wipe import DeviceMemory, held_free_memory, overwrite_free_memory
from filmgate.settings import PipelineSettings
from filmgate.worker import gpu_runner
from filmgate.worker.base import ClipSource, RenderTask
from filmgate.worker.gpu_runner import GpuRunner

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
]

CUDA = torch.device("cuda")
MIB = 1 << 20
SIZES = [1, 700, 4096, 300_000, MIB, MIB + 1, 3 * MIB, 11 * MIB, 40 * MIB, 700 * MIB]


def mark(stream, sizes=SIZES):
    """Fill memory of this stream with a pattern and free it."""
    with torch.cuda.stream(stream):
        for tensor in [torch.empty(size, dtype=torch.uint8, device=CUDA) for size in sizes]:
            tensor.fill_(0xA5)


def count_remains():
    """The bytes of free blocks that are not all zero."""
    with held_free_memory(CUDA) as blocks:
        torch.cuda.synchronize()
        return sum(memory.nbytes for _, memory in blocks if memory.any())


def report(text):
    sys.stdout.write(text + "\n")


def test_free_memory_of_every_stream_is_overwritten_and_used_memory_is_not():
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    kept = torch.full((5 * MIB,), 7, dtype=torch.uint8, device=CUDA)
    for stream in streams:
        mark(stream)
    assert count_remains() >= len(streams) * sum(SIZES)
    reserved = torch.cuda.memory_reserved()
    written = overwrite_free_memory(CUDA)
    assert torch.cuda.memory_reserved() == reserved, "nothing was freed, and nothing more was taken"
    assert count_remains() == 0
    assert written >= len(streams) * sum(SIZES)
    assert int(kept.min()) == int(kept.max()) == 7


def test_it_is_overwritten_in_stream_order_without_waiting_on_the_host():
    """Work that is queued still reads its values, also from memory that is free for the host already."""
    other = torch.cuda.Stream()
    one = torch.randn(8192, 8192, device=CUDA)
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        memory = torch.full((64 * MIB,), 3, dtype=torch.uint8, device=CUDA)
        for _ in range(30):  # more than half a second
            one = torch.mm(one, one).clamp_(-1, 1)
        copy = memory.clone()
        last = other.record_event()
        del memory
    started = time.monotonic()
    overwrite_free_memory(CUDA)
    queued_seconds = time.monotonic() - started
    is_running = not last.query()
    torch.cuda.synchronize()
    remains = count_remains()  # first: a minimum leaves its own in free memory
    assert int(copy.min()) == int(copy.max()) == 3
    assert is_running, f"the host waited {queued_seconds:.3f} s"
    assert remains == 0


def test_memory_that_two_streams_have_used_is_found_when_the_device_is_done_with_it():
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        memory = torch.full((64 * MIB,), 9, dtype=torch.uint8, device=CUDA)
    torch.cuda.current_stream().wait_stream(other)
    memory.record_stream(torch.cuda.current_stream())
    del memory
    torch.cuda.synchronize()
    overwrite_free_memory(CUDA)
    assert count_remains() == 0


def test_a_stream_that_prepares_overwrites_its_own_memory_while_others_are_in_use():
    own, other = torch.cuda.Stream(), torch.cuda.Stream()
    mark(own)
    mark(other)
    memory = DeviceMemory(CUDA)
    memory.switch_owner("acme")
    mark(own)
    mark(other)
    with torch.cuda.stream(own):
        memory.prepare_for("globex")
    remains = {}
    with held_free_memory(CUDA) as blocks:
        torch.cuda.synchronize()
        for handle, block in blocks:
            remains[handle] = remains.get(handle, 0) + (block.nbytes if block.any() else 0)
    assert remains[own.cuda_stream] == 0
    assert remains[other.cuda_stream] >= sum(SIZES)
    memory.switch_owner("globex")
    assert count_remains() == 0


def test_a_job_that_was_prepared_and_never_ran_leaves_nothing_to_the_owner_of_the_device():
    stream = torch.cuda.Stream()
    memory = DeviceMemory(CUDA)
    memory.switch_owner("acme")
    with torch.cuda.stream(stream):
        memory.prepare_for("globex")
        mark(stream)
        memory.prepare_for("acme")
    with held_free_memory(CUDA, stream.cuda_stream) as blocks:
        torch.cuda.synchronize()
        assert sum(block.nbytes for _, block in blocks) >= sum(SIZES)
        assert not any(block.any() for _, block in blocks)


def test_a_queued_decode_leaves_no_memory_that_is_freed_only_when_the_device_is_done():
    """Such memory would be freed after the job of the next tenant has overwritten the free memory."""
    vae = build_vae("wan2.1", CUDA, torch.bfloat16)
    latents = random_latents("wan2.1", (256, 256), 17, vae)
    decoder, ready = prepare(vae, latents, choice="fast")
    for is_busy in (False, True):  # the first decode builds the kernels
        torch.cuda.synchronize()
        if is_busy:
            torch.cuda._sleep(2_000_000_000)  # about a second
        done = torch.cuda.current_stream().record_event()
        for _ in decode_frames(decoder, ready):
            pass
    states = {block["state"] for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]}
    assert not done.query(), "the decode waited for the device"
    assert states <= {"active_allocated", "inactive"}
    torch.cuda.synchronize()


@pytest.fixture(scope="module")
def runner():
    runner = GpuRunner({"flipbook": "flipbook"}, PipelineSettings(device="auto"))
    runner.check()
    return runner


def render(runner, number, tenant):
    spec = VideoSpec(
        "flipbook", f"a red ball {number}", 256, 256, 33 / 16, 16, steps=10, seed=1, guidance=1.0
    )
    for output in runner.render(RenderTask(spec, TenantId(tenant))):
        if isinstance(output, ClipSource):
            clip = b"".join(output.open_chunks())
            output.close()
    return clip


def test_a_job_of_another_tenant_finds_no_remains_of_the_one_before(runner, monkeypatch):
    found, takes, switch_owner = [], [], gpu_runner.DeviceMemory.switch_owner

    def look(memory, owner):
        is_change = memory.belongs_to_other(owner)
        torch.cuda.synchronize()
        before = count_remains() if is_change else 0
        started = time.monotonic()
        switch_owner(memory, owner)
        host_seconds = time.monotonic() - started
        torch.cuda.synchronize()
        if is_change:
            takes.append((host_seconds, time.monotonic() - started, torch.cuda.memory_reserved()))
            found.append((before, count_remains()))

    monkeypatch.setattr(gpu_runner.DeviceMemory, "switch_owner", look)
    started = time.monotonic()
    clips = [render(runner, 1, tenant) for tenant in ("acme", "acme", "globex", "acme")]
    seconds = (time.monotonic() - started) / len(clips)
    first, *others = [read_luma(clip) for clip in clips]
    differences = [float(abs(first - other).mean()) for other in others]
    assert max(differences) < 2.0, "the memory that was overwritten was not in use"
    assert len(found) == 3, "it is overwritten when the tenant changes, not for every job"
    assert all(before > 0 for before, _ in found), "there were remains"
    assert [after for _, after in found] == [0, 0, 0]
    for host, whole, reserved in takes:
        report(f"overwrote free memory of {reserved / 2**20:.0f} MiB: host {host:.4f} s, whole {whole:.4f} s")
    report(f"a clip of 33 frames at 256x256: {seconds:.3f} s")


def test_most_of_the_free_memory_of_a_large_model_is_overwritten():
    free, _ = torch.cuda.mem_get_info()
    size = min(free // 2, 64 << 30)
    mark(torch.cuda.current_stream(), [size // 64] * 64)
    torch.cuda.synchronize()
    started = time.monotonic()
    written = overwrite_free_memory(CUDA)
    host_seconds = time.monotonic() - started
    torch.cuda.synchronize()
    seconds = time.monotonic() - started
    times = f"{seconds * 1000:.1f} ms, {host_seconds * 1000:.1f} ms of them on the host"
    report(f"{written / 2**30:.1f} GiB in {times}")
    assert written >= 0.9 * size
    torch.cuda.empty_cache()
