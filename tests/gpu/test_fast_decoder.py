"""The fast decoder on a real GPU. Run by hand, as tests/gpu/README.md says."""

import itertools
import time
from dataclasses import replace

import pytest
import torch

from filmgate.pipeline.bench.fidelity import compare, decode_chunks
from filmgate.pipeline.bench.vaes import build_vae, random_latents
from filmgate.pipeline.clip_writer import ClipWriter, prepare
from filmgate.pipeline.decode import uses_fast
from filmgate.pipeline.decode.fast.group_kernels import condition_on_gpu, gather_on_gpu, settle_on_gpu
from filmgate.pipeline.decode.fast.group_passes import (
    Conditioning,
    GroupNorm,
    Memory,
    condition_in_torch,
    gather_in_torch,
    settle_in_torch,
)
from filmgate.pipeline.decode.fast.kernels import add_taps_on_gpu, combine_on_gpu, soften_on_gpu
from filmgate.pipeline.decode.fast.passes import (
    Activation,
    Layout,
    Pending,
    Source,
    add_taps_in_torch,
    combine_in_torch,
)
from filmgate.pipeline.decode.ladder import decode_frames
from filmgate.pipeline.encode.encoder import EncodeOptions
from filmgate.pipeline.transfer.colour import Yuv420

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def vaes():
    return {name: build_vae(name, CUDA, torch.bfloat16) for name in ("wan2.1", "wan2.2", "cogvideox")}


@pytest.mark.parametrize("channels", [16, 96, 384])
@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize("frames", [1, 2, 4])
def test_the_kernel_does_what_the_reference_does(frames, source, channels):
    if source is Source.SLOTS and frames == 1:
        pytest.skip("a single frame is never split into slots")
    layouts = [Layout.FRAMES, Layout.STACKED if frames == 1 else Layout.SLOTS]
    for layout, has_residual, keep in itertools.product(layouts, (False, True), (False, True)):
        pending = _pending(source, frames, channels, has_residual)
        gamma, cache = torch.randn(channels, device=CUDA), _random(2, 6, 10, channels)
        has_cache = layout is not Layout.FRAMES or frames == 1
        there, here = (Activation(gamma, layout, cache.clone() if has_cache else None) for _ in range(2))
        expected = combine_in_torch(pending, there, keep=keep)
        for _ in range(2):  # by way of Triton's launch, and past it
            if has_cache:
                here.cache.copy_(cache)
            found = combine_on_gpu(_copy(pending), here, keep=keep)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-2)
            if has_cache:
                torch.testing.assert_close(there.cache, here.cache, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("channels", [16, 128, 256, 512])
@pytest.mark.parametrize("source", Source)
@pytest.mark.parametrize(("frames", "times"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_gathering_is_the_references(frames, times, source, channels):
    if source is Source.SLOTS and frames == 1:
        pytest.skip("a single frame is never split into slots")
    for has_residual in (False, True):
        pending = _pending(source, frames, channels, has_residual)
        expected, expected_sums = gather_in_torch(pending, 8, times)
        for _ in range(2):  # by way of Triton's launch, and past it
            found, sums = gather_on_gpu(_copy(pending), 8, times)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-2)
            torch.testing.assert_close(sums.sum(-1, keepdim=True), expected_sums, rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize(("channels", "groups"), [(16, 4), (128, 32), (512, 32)])
@pytest.mark.parametrize("programs", [1, 7, 10_001])
def test_settling_is_the_references(programs, channels, groups):
    norm = GroupNorm(*torch.randn(2, channels, device=CUDA), groups, 1e-6)
    sums = torch.randn(2, groups, programs, device=CUDA)
    sums[1] = sums[1].abs() + 3  # squares: more than a mean can take away
    for _ in range(2):
        found, expected = settle_on_gpu(sums, norm, programs), settle_in_torch(sums, norm, programs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [16, 128, 256, 512])
@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("zoom", [1, 2])
def test_conditioning_is_the_references(zoom, frames, latents, channels):
    given, cache = _random(frames, 6, 10, channels), _random(2, 6, 10, channels)
    settled = torch.randn(2, channels, device=CUDA)
    conditioning = Conditioning(settled, _random(latents, 6 // zoom, 10 // zoom, 2 * channels))
    layout = Layout.SLOTS if frames > 1 else Layout.FRAMES
    for begins in (True,) if frames == 1 else (False, True):
        for _ in range(2):
            there, here = (Memory(cache.clone(), begins) for _ in range(2))
            expected = condition_in_torch(given, conditioning, layout, there)
            found = condition_on_gpu(given, conditioning, layout, here)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-2)
            torch.testing.assert_close(here.cache, there.cache, rtol=2e-3, atol=2e-2)
    expected = condition_in_torch(given, conditioning, Layout.FRAMES)
    torch.testing.assert_close(
        condition_on_gpu(given, conditioning, Layout.FRAMES), expected, rtol=2e-3, atol=2e-2
    )


@pytest.mark.parametrize("channels", [3, 12])
def test_taps_are_added_up_as_the_reference_adds_them(channels):
    bias, maps = torch.randn(channels, device=CUDA), _random(7, 6, 10, 3 * channels + 7)
    carries = [torch.randn(channels, 2, 6, 10, device=CUDA)] * 2
    carries = [carry.clone() for carry in carries]
    for part in maps.split([1, 4, 2]):
        expected, found = add_taps_in_torch(part, bias, carries[0]), add_taps_on_gpu(part, bias, carries[1])
        torch.testing.assert_close(expected, found, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(*carries, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [7, 14400, 32640])
def test_a_softened_row_is_a_softmax(columns):
    scores = torch.randn(2, 9, columns, device=CUDA) * 30
    expected = scores.double().softmax(-1)
    torch.testing.assert_close(soften_on_gpu(scores, torch.float16), expected.half(), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(64, 48), (720, 1280)])
def test_colours_are_the_references(size, dtype):
    frames = (torch.randn(3, 4, *size, device=CUDA) * 0.7).to(dtype)
    there, here = (
        torch.zeros(3, *Yuv420().frame_shape(*size), device=CUDA, dtype=torch.uint8) for _ in range(2)
    )
    Yuv420.convert_in_torch(frames[:, -3:], there)
    Yuv420().convert(frames[:, -3:], here)
    assert (there.int() - here.int()).abs().max() <= 1  # a tie may fall either way
    assert (there != here).float().mean() < 1e-4


def _random(*shape):
    return torch.randn(shape, device=CUDA, dtype=torch.float16)


def _copy(pending):
    """The kernel may write over what it has read."""
    residual = None if pending.residual is None else pending.residual.clone()
    return replace(pending, maps=tuple(one.clone() for one in pending.maps), residual=residual)


def _pending(source, frames, channels, has_residual):
    maps = {
        Source.FRAMES: lambda: (_random(frames, 6, 10, channels),),
        Source.SLOTS: lambda: tuple(_random(1, 6, 10, channels) for _ in range(frames + 2)),
        Source.PHASES: lambda: (_random(frames, 4, 6, 4 * channels),),
    }[source]()
    residual = _random(frames, 6, 10, channels) if has_residual else None
    return Pending(source, maps, torch.randn(channels, device=CUDA), residual)


@pytest.mark.parametrize(
    ("name", "size"), [("wan2.1", (832, 480)), ("wan2.2", (832, 480)), ("cogvideox", (720, 480))]
)
def test_it_is_closer_to_float32_than_the_exact_decoder_and_shows_no_seam(vaes, name, size):
    found = compare(vaes[name], lambda: random_latents(name, size, 33, vaes[name]))
    assert found.error_ratio <= 1.1
    assert found.worst_frame_ratio <= 1.1
    assert found.seam < 0.1


@pytest.mark.parametrize(
    ("name", "size", "frames"),
    [
        ("wan2.1", (256, 256), 33),
        ("wan2.1", (832, 480), 33),
        ("wan2.1", (480, 832), 17),
        ("wan2.1", (1280, 720), 33),
        ("wan2.1", (1920, 1088), 9),
        ("wan2.2", (1280, 704), 33),
        ("cogvideox", (720, 480), 49),
        ("cogvideox", (1360, 768), 17),
    ],
)
def test_it_is_faster_and_takes_no_more_memory(vaes, name, size, frames):
    seconds, peaks = {}, {}
    for choice in ("exact", "fast"):
        for n in range(3):
            decoder, ready = prepare(
                vaes[name], random_latents(name, size, frames, vaes[name]), choice=choice
            )
            assert uses_fast(decoder) == (choice == "fast")
            torch.cuda.synchronize()
            if n == 0:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            for _ in decode_frames(decoder, ready):
                pass
            torch.cuda.synchronize()
            seconds[choice] = time.perf_counter() - started
        peaks[choice] = torch.cuda.max_memory_allocated()
    assert seconds["fast"] < seconds["exact"]
    assert peaks["fast"] <= peaks["exact"]


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox"])
def test_its_memory_is_flat_in_clip_length(vaes, name):
    peaks = []
    for frames in (17, 81):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        latents = random_latents(name, (832, 480), frames, vaes[name])
        decoder, ready = prepare(vaes[name], latents, choice="fast")
        for _ in decode_frames(decoder, ready):
            pass
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] <= peaks[0] * 1.02


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox"])
def test_weights_beyond_half_precision_fall_back_to_the_exact_decoder(name, tmp_path):
    vae = build_vae(name, CUDA, torch.bfloat16)
    with torch.no_grad():
        for weight in vae.decoder.up_blocks[2].resnets[0].conv1.parameters():
            weight.mul_(1e6)
    latents = random_latents(name, (256, 256), 9, vae)
    report = ClipWriter(vae, EncodeOptions(), decoder="fast").write(latents, tmp_path / "clip.mp4")
    assert report.rung == "whole frame"
    assert report.shape.frames == 9


def test_changed_weights_are_laid_out_again(vaes):
    vae = build_vae("wan2.1", CUDA, torch.bfloat16)
    latents = random_latents("wan2.1", (256, 256), 5, vae)
    before = torch.cat(decode_chunks(vae, latents, "fast"), dim=1)
    with torch.no_grad():
        vae.decoder.conv_out.bias.add_(0.25)
    after = torch.cat(decode_chunks(vae, latents, "fast"), dim=1)
    assert (after - before).mean() == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox"])
def test_two_clips_at_once_are_what_each_is_alone(vaes, name):
    vae = vaes[name]
    clips = [random_latents(name, (256, 256), 17, vae) for _ in range(2)]
    alone = [torch.cat(decode_chunks(vae, clip, "fast"), dim=1) for clip in clips]
    pairs = [prepare(vae, clip, choice="fast") for clip in clips]
    both = [[], []]
    for chunks in zip(*(decode_frames(decoder, ready) for decoder, ready in pairs), strict=True):
        for n, frames in enumerate(chunks):
            both[n].append(frames.float().cpu())
    assert all(torch.equal(torch.cat(both[n], dim=1), alone[n]) for n in range(2))


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox"])
@torch.inference_mode()
def test_tiles_of_the_fast_decoder_show_the_same_picture(vaes, name):
    vae = vaes[name]
    latents = random_latents(name, (512, 256), 17, vae)
    apart = {}
    for choice in ("fast", "exact"):
        decoder, ready = prepare(vae, latents, choice=choice)
        whole, tiled = (
            torch.cat(list(decoder.chunks(ready, rung)), dim=1).float() for rung in decoder.rungs(ready)[:2]
        )
        apart[choice] = (whole - tiled).norm()
    assert apart["fast"] <= 1.1 * apart["exact"]
