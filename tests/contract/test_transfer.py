"""The plain and the overlapped loop pass the same bytes, and free everything when they fail."""

import threading
import time
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from filmgate.errors import Cancelled, DecodeError, OutOfMemory, WriteError
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode.base import ClipShape
from filmgate.pipeline.transfer import loops
from filmgate.pipeline.transfer.colour import Rgb24, Yuv420
from filmgate.pipeline.transfer.loops import FLAG_BYTES, Rings, transfer_overlapped, transfer_plain
from filmgate.pipeline.transfer.streams import SyncStreams, open_streams
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("no_thread_left")
LOOPS = [transfer_plain, transfer_overlapped]
HEIGHT, WIDTH = 4, 6


def open_rings(longest=4, slots=(2, 3), layout=None):
    return Rings(
        SyncStreams(torch.device("cpu")), layout or Yuv420(), ClipShape(99, HEIGHT, WIDTH, longest), slots
    )


def numbered(lengths, produced=None):
    """Chunks of the given lengths; every pixel of frame n has brightness n."""
    n = 0
    for length in lengths:
        levels = torch.arange(n, n + length) % 256 / 127.5 - 1
        n += length
        if produced is not None:
            produced.append(length)
        yield levels.view(1, length, 1, 1).expand(3, length, HEIGHT, WIDTH)


def transferred(loop, lengths, rings):
    received = []
    loop(numbered(lengths), rings, lambda frames: received.append(frames.copy()), Control())
    return received


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 5), max_size=24),
    device_slots=st.integers(1, 4),
    host_slots=st.integers(1, 6),
    layout=st.sampled_from([Yuv420(), Rgb24()]),
)
def test_both_loops_pass_the_same_bytes_in_the_same_chunks(lengths, device_slots, host_slots, layout):
    one, other = (
        transferred(loop, lengths, open_rings(5, (device_slots, host_slots), layout)) for loop in LOOPS
    )
    assert [len(frames) for frames in one] == [len(frames) for frames in other] == lengths
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("loop", LOOPS)
def test_frames_arrive_complete_and_in_order(loop):
    received = transferred(loop, [1, 4, 4, 2, 4], open_rings(layout=Rgb24()))
    frames = np.concatenate(received)
    assert frames.shape == (15, HEIGHT, WIDTH, 3)
    assert np.array_equal(frames, np.broadcast_to(np.arange(15)[:, None, None, None], frames.shape))


@pytest.mark.parametrize("loop", LOOPS)
def test_the_next_clip_reuses_the_buffers(loop):
    rings = open_rings()
    first = transferred(loop, [1, 4, 4], rings)
    before = {slot.buffer.data_ptr() for slot in rings.free_host._items}
    second = transferred(loop, [1, 4, 4], rings)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert {slot.buffer.data_ptr() for slot in rings.free_host._items} == before
    assert (len(rings.free_device._items), len(rings.free_host._items)) == (2, 3)


@pytest.mark.parametrize(("device_slots", "host_slots"), [(2, 2), (2, 4), (3, 5)])
def test_a_slow_consumer_limits_the_decoder(device_slots, host_slots):
    rings, produced, release = open_rings(slots=(device_slots, host_slots)), [], threading.Event()
    bound = device_slots + host_slots + 1  # every slot is full, and one chunk waits for a slot

    def consume(frames):
        assert release.wait(60)

    def watch():
        wait_until(lambda: len(produced) >= bound)
        time.sleep(0.05)  # more chunks would be made now; on a slow machine this can only miss them, not fail
        seen.append(len(produced))
        release.set()

    seen = []
    watcher = threading.Thread(target=watch)
    watcher.start()
    transfer_overlapped(numbered([2] * 30, produced), rings, consume, Control())
    watcher.join()
    assert seen == [bound]
    assert len(produced) == 30


def test_ctrl_c_ends_a_transfer_that_waits_for_its_consumer(monkeypatch):
    """The decoder has ended: the caller waits for the encoder, whose thread must not stay behind."""
    received, is_interrupted = [], threading.Event()

    class Interrupted(threading.Thread):
        def join(self, timeout=None):
            if not is_interrupted.is_set():
                is_interrupted.set()
                raise KeyboardInterrupt
            super().join(timeout)

    def consume(frames):
        assert is_interrupted.wait(60)
        received.append(len(frames))

    monkeypatch.setattr(loops, "Thread", Interrupted)
    rings = open_rings(slots=(2, 8))
    with pytest.raises(KeyboardInterrupt):
        transfer_overlapped(numbered([2] * 6), rings, consume, Control())
    assert not [each for each in threading.enumerate() if isinstance(each, Interrupted)]
    assert rings.is_closed


@pytest.mark.parametrize("fails_at", [0, 1, 7, 19])
@pytest.mark.parametrize("loop", LOOPS)
def test_an_error_of_the_consumer_is_raised_with_its_cause(loop, fails_at):
    seen = []

    def consume(frames):
        seen.append(frames)
        if len(seen) == fails_at + 1:
            raise WriteError("cannot write the clip") from OSError(28, "No space left on device")

    with pytest.raises(WriteError) as caught:
        loop(numbered([4] * 20), open_rings(), consume, Control())
    assert isinstance(caught.value.__cause__, OSError)
    assert len(seen) == fails_at + 1


@pytest.mark.parametrize("fails_at", [0, 1, 7])
@pytest.mark.parametrize("loop", LOOPS)
def test_an_error_of_the_decoder_is_raised_and_ends_the_threads(loop, fails_at):
    def chunks():
        yield from numbered([4] * fails_at)
        raise RuntimeError("the driver crashed")

    with pytest.raises(RuntimeError, match="the driver crashed"):
        loop(chunks(), open_rings(), lambda frames: None, Control())


def test_a_decoder_that_fails_while_the_consumer_is_stuck_in_a_full_ring_does_not_hang():
    has_failed = threading.Event()

    def chunks():
        yield from numbered([4] * 3)
        has_failed.set()
        raise RuntimeError("the driver is gone")

    with pytest.raises(RuntimeError, match="the driver is gone"):
        transfer_overlapped(chunks(), open_rings(), lambda frames: has_failed.wait(60), Control())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_buffers_of_a_failed_clip_are_freed(loop):
    rings = open_rings()
    buffers = [weakref.ref(slot.buffer) for slot in rings.free_host._items]

    def consume(frames):
        raise WriteError("full")

    with pytest.raises(WriteError):
        loop(numbered([4] * 20), rings, consume, Control())
    del rings
    assert [ref() for ref in buffers] == [None] * 3


@pytest.mark.parametrize("loop", LOOPS)
def test_cancel_takes_effect_within_one_chunk(loop):
    control, produced = Control(), []

    def chunks():
        for n, chunk in enumerate(numbered([1] * 50, produced)):
            if n == 5:
                control.cancel()
            yield chunk

    with pytest.raises(Cancelled):
        loop(chunks(), open_rings(), lambda frames: None, control)
    assert len(produced) == 6


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("loop", LOOPS)
def test_frames_with_nan_or_infinity_raise_an_error(loop, bad):
    def chunks():
        yield from numbered([4])
        chunk = torch.zeros(3, 4, HEIGHT, WIDTH)
        chunk[1, 2, 3, 4] = bad
        yield chunk

    received = []
    with pytest.raises(DecodeError, match="NaN or infinity"):
        loop(chunks(), open_rings(), received.append, Control())
    assert len(received) == 1


class Crowded:
    """A layout on a GPU whose memory allows only `together` frames per conversion."""

    def __init__(self, layout, together):
        self._layout, self._together = layout, together
        self.frame_shape = layout.frame_shape

    def convert(self, frames, out, is_finite=None):
        if frames.shape[1] > self._together:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self._layout.convert(frames, out, is_finite)


@pytest.mark.parametrize("layout", [Yuv420(), Rgb24()])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_chunk_too_large_to_convert_is_converted_frame_by_frame(loop, layout, caplog):
    lengths = [1, 4, 4, 3]
    crowded = transferred(loop, lengths, open_rings(layout=Crowded(layout, together=1)))
    roomy = transferred(loop, lengths, open_rings(layout=layout))
    assert all(np.array_equal(a, b) for a, b in zip(crowded, roomy, strict=True))
    assert [record.fields["frames"] for record in caplog.records] == [4, 4, 3]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_frame_too_large_to_convert_raises_an_error_with_the_remedy(loop):
    with pytest.raises(OutOfMemory, match="lower --size, or set pipeline.offload") as caught:
        transferred(loop, [4, 4], open_rings(layout=Crowded(Yuv420(), together=0)))
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_rings_too_large_for_the_gpu_raise_an_error_with_the_remedy(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(SyncStreams, "device_buffer", full)
    with pytest.raises(OutOfMemory, match="2 chunks of .* MiB; free memory on the GPU, lower --size"):
        open_rings()


@pytest.mark.parametrize("loop", LOOPS)
def test_frames_converted_one_by_one_are_still_checked(loop):
    chunk = torch.zeros(3, 4, HEIGHT, WIDTH)
    chunk[1, 1, 3, 4] = float("nan")
    with pytest.raises(DecodeError, match="NaN or infinity"):
        loop(iter([chunk]), open_rings(layout=Crowded(Yuv420(), 1)), lambda frames: None, Control())


def test_decoding_and_encoding_happen_at_the_same_time():
    produced, consumed, leads = [], [], []

    def consume(frames):
        consumed.append(1)
        wait_until(lambda: len(produced) > len(consumed) or len(consumed) == 20)  # the next one is decoded

    transfer_overlapped(numbered([1] * 20, produced), open_rings(), consume, Control())
    assert len(consumed) == 20
    produced.clear()
    count = lambda frames: leads.append(len(produced) - len(leads))  # noqa: E731
    transfer_plain(numbered([1] * 20, produced), open_rings(), count, Control())
    assert leads == [1] * 20, "the plain loop never decodes ahead"


def test_a_cpu_uses_synchronous_streams():
    assert isinstance(open_streams(torch.device("cpu")), SyncStreams)


def test_frames_are_converted_on_the_device_of_the_vae():
    """Also where there are no streams, such as MPS."""
    streams = open_streams(torch.device("meta"))
    assert (streams.device_buffer(3).device.type, streams.host_buffer(3).device.type) == ("meta", "cpu")


class Inspected(Yuv420):
    """Keeps what a slot held just before a conversion wrote to it."""

    def __init__(self):
        self.found = []

    def convert(self, frames, target, is_finite):
        self.found.append(target.clone())
        super().convert(frames, target, is_finite)


def slots_of(channel, count):
    slots = [channel.get() for _ in range(count)]
    for slot in slots:
        channel.put(slot)
    return slots


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_of_a_tenants_frames_remains_when_another_tenant_uses_the_buffers(loop):
    """Caches and buffers keep tenants apart: what is reused is overwritten first, and nothing is freed."""
    layout = Inspected()
    rings = open_rings(4, (2, 3), layout)
    buffers = [slot.buffer.data_ptr() for slot in slots_of(rings.free_device, 2)]
    rings.owner = "acme"
    transferred(loop, [4] * 6, rings)
    layout.found.clear()
    rings.owner = "globex"
    transferred(loop, [1] * 6, rings)  # short chunks would leave the rest of a slot as it was
    first_use = layout.found[: 1 if loop is transfer_plain else 2]
    assert all(not found.any() for found in first_use)
    assert sorted(slot.buffer.data_ptr() for slot in slots_of(rings.free_device, 2)) == sorted(buffers)
    used = [slot for slot in slots_of(rings.free_device, 2) if slot.owner == "globex"]
    used += [slot for slot in slots_of(rings.free_host, 3) if slot.owner == "globex"]
    one_chunk = FLAG_BYTES + HEIGHT * WIDTH * 3 // 2
    assert used
    assert not any(slot.buffer[one_chunk:].any() for slot in used)


def test_consecutive_clips_of_one_tenant_overwrite_nothing():
    rings = open_rings(4, (2, 3))
    rings.owner = "acme"
    transferred(transfer_plain, [4] * 3, rings)
    for slot in slots_of(rings.free_host, 3):
        slot.buffer[-1] = 7
    transferred(transfer_plain, [1] * 3, rings)
    assert any(slot.buffer[-1] == 7 for slot in slots_of(rings.free_host, 3))
