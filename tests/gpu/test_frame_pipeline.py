"""The frame pipeline on a real GPU. Run by hand; see tests/gpu/README.md."""

import threading
import time

import pytest
import torch

from filmgate.errors import Cancelled, DecodeError, OutOfMemory
from filmgate.pipeline.bench.vaes import build_vae, random_latents
from filmgate.pipeline.clip_writer import ClipWriter, prepare, stream_frames
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode.base import decode_frames
from filmgate.pipeline.encode.encoder import EncodeOptions
from filmgate.pipeline.transfer.colour import Rgb24, Yuv420
from filmgate.pipeline.transfer.loops import FLAG_BYTES, Rings, transfer_overlapped, transfer_plain
from filmgate.pipeline.transfer.streams import open_streams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def vae():
    return build_vae("wan2.1", CUDA, torch.bfloat16)


@pytest.fixture
def latents(vae):
    return random_latents("wan2.1", (832, 480), 33, vae)


def test_both_loops_write_the_same_bytes(vae, latents, tmp_path):
    for name, loop in (("plain", transfer_plain), ("overlapped", transfer_overlapped)):
        ClipWriter(vae, EncodeOptions(), loop=loop).write(latents, tmp_path / f"{name}.mp4")
    assert (tmp_path / "plain.mp4").read_bytes() == (tmp_path / "overlapped.mp4").read_bytes()


def test_the_hot_loop_does_not_synchronise(vae, latents):
    decoder, ready = prepare(vae, latents)
    rings = Rings(open_streams(CUDA), Yuv420(), decoder.shape(ready), (2, 4))
    seen = []
    transfer_overlapped(decode_frames(decoder, ready), rings, lambda a: seen.append(len(a)), Control())
    watched = _forbidding_synchronisation(decode_frames(decoder, ready))
    transfer_overlapped(watched, rings, lambda a: seen.append(len(a)), Control())
    assert sum(seen) == 2 * 33


def _forbidding_synchronisation(chunks):
    """Between the first chunk and the last. Draining both streams after the last chunk is intended."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield from chunks
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("layout", [Yuv420(), Rgb24()])
def test_colours_are_equal_on_gpu_and_cpu(layout):
    frames = torch.rand(3, 4, 64, 96) * 2.2 - 1.1
    shape = (4, *layout.frame_shape(64, 96))
    on_cpu, on_gpu = torch.empty(shape, dtype=torch.uint8), torch.empty(shape, dtype=torch.uint8, device=CUDA)
    layout.convert(frames, on_cpu)
    layout.convert(frames.to(CUDA), on_gpu)
    assert (on_cpu.int() - on_gpu.cpu().int()).abs().max() <= 1


def test_streamed_frames_are_the_decoded_frames(vae, latents):
    decoder, ready = prepare(vae, latents)
    whole = torch.cat(list(decode_frames(decoder, ready)), dim=1)
    expected = torch.empty((33, 480, 832, 3), dtype=torch.uint8, device=CUDA)
    Rgb24().convert(whole, expected)
    streamed = torch.cat([torch.from_numpy(frames) for frames in stream_frames(vae, latents)])
    assert torch.equal(streamed, expected.cpu())


def test_a_slow_encoder_receives_every_frame_intact(vae, latents):
    decoder, ready = prepare(vae, latents)
    expected, received = [], []
    for loop, into, pause in ((transfer_plain, expected, 0.0), (transfer_overlapped, received, 0.03)):
        rings = Rings(open_streams(CUDA), Yuv420(), decoder.shape(ready), (2, 2))

        def consume(frames, into=into, pause=pause):
            time.sleep(pause)
            into.append(frames.copy())

        loop(decode_frames(decoder, ready), rings, consume, Control())
    assert all((a == b).all() for a, b in zip(expected, received, strict=True))


def test_a_clip_finishes_on_a_lower_rung_when_memory_runs_out(vae, tmp_path):
    latents = random_latents("wan2.1", (1280, 720), 17, vae)
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + (6 << 30)) / total)
    try:
        report = ClipWriter(vae, EncodeOptions()).write(latents, tmp_path / "clip.mp4")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert report.rung != "whole frame"
    assert report.shape.frames == 17


def test_too_little_memory_for_the_last_rung_is_a_clear_error(vae, tmp_path):
    latents = random_latents("wan2.1", (1280, 720), 9, vae)
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + (64 << 20)) / total)
    try:
        with pytest.raises(OutOfMemory, match="lower --size"):
            ClipWriter(vae, EncodeOptions()).write(latents, tmp_path / "clip.mp4")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert list(tmp_path.iterdir()) == []


def test_cancel_stops_the_gpu_within_two_chunks(vae, tmp_path):
    latents = random_latents("wan2.1", (1280, 720), 81, vae)
    writer = ClipWriter(vae, EncodeOptions())
    whole = writer.write(latents, tmp_path / "whole.mp4").seconds
    control = Control()
    threading.Timer(whole / 4, control.cancel).start()
    started = time.perf_counter()
    with pytest.raises(Cancelled):
        writer.write(latents, tmp_path / "clip.mp4", control=control)
    torch.cuda.synchronize()
    assert time.perf_counter() - started < whole / 4 + 3 * whole / 21 + 0.1
    assert not (tmp_path / "clip.mp4").exists()


def test_non_finite_frames_are_refused(vae, latents, tmp_path):
    bias = vae.decoder.conv_out.bias
    kept = bias.detach().clone()
    with torch.no_grad():
        bias.fill_(float("nan"))
    try:
        with pytest.raises(DecodeError, match="NaN"):
            ClipWriter(vae, EncodeOptions()).write(latents, tmp_path / "clip.mp4")
    finally:
        with torch.no_grad():
            bias.copy_(kept)
    assert list(tmp_path.iterdir()) == []


def test_device_memory_does_not_grow_with_clip_length(vae, tmp_path):
    peaks = []
    for frames in (17, 65):
        latents = random_latents("wan2.1", (832, 480), frames, vae)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        ClipWriter(vae, EncodeOptions()).write(latents, tmp_path / "clip.mp4")
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < peaks[0] * 1.02


def requested_bytes():
    """What tensors asked for. `torch.cuda.memory_allocated` adds the unused rest of each block."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def test_another_tenants_frames_are_overwritten_without_synchronising(vae, latents):
    decoder, ready = prepare(vae, latents)
    rings = Rings(open_streams(CUDA), Yuv420(), decoder.shape(ready), (2, 4))
    rings.owner = "acme"
    transfer_overlapped(decode_frames(decoder, ready), rings, lambda _: None, Control())
    before = requested_bytes()
    rings.owner = "globex"
    watched = _forbidding_synchronisation(decode_frames(decoder, ready))
    first = next(watched)

    def short():
        yield first[:, :1]
        yield first[:, :1]
        watched.close()

    transfer_overlapped(short(), rings, lambda _: None, Control())
    rings.streams.drain()
    slots = [rings.free_device.get() for _ in range(2)]
    used = FLAG_BYTES + rings._frame_bytes
    assert {slot.owner for slot in slots} == {"globex"}
    assert not any(slot.buffer[used:].any() for slot in slots)
    assert requested_bytes() <= before + first.nbytes, "no buffer was freed and allocated again"


def test_work_beside_the_compute_stream_does_not_wait_for_it_and_is_seen_by_it():
    streams = open_streams(CUDA)
    value = torch.arange(1000.0)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    busy = streams.mark_compute()
    with streams.beside_compute():
        prepared = value.to(CUDA) * 2
        assert torch.equal(prepared.cpu(), value * 2)
        assert not busy.is_done, "the host waited for the compute stream"
        streams.join_compute()
        result = prepared + 1
    assert torch.equal(result.cpu(), value * 2 + 1)
    assert busy.is_done
