"""The fast decoder on a real GPU. Run by hand; see tests/gpu/README.md."""

import itertools
import time
from collections import deque
from dataclasses import replace
from math import inf

import pytest
import torch

from benchmarks.bench_fidelity import compare, decode_chunks
from filmgate.pipeline.bench.decode import decode_with_vae
from filmgate.pipeline.bench.vaes import build_vae, random_latents
from filmgate.pipeline.clip_writer import ClipWriter, prepare
from filmgate.pipeline.decode import is_fast_decoder
from filmgate.pipeline.decode.base import decode_frames
from filmgate.pipeline.decode.fast.group_kernels import (
    normalise_on_gpu,
    scale_and_shift_on_gpu,
    to_frames_and_sums_on_gpu,
)
from filmgate.pipeline.decode.fast.group_passes import (
    CausalCache,
    GroupNorm,
    Modulation,
    normalise_in_torch,
    scale_and_shift_in_torch,
    to_frames_and_sums_in_torch,
)
from filmgate.pipeline.decode.fast.kernels import add_taps_on_gpu, combine_on_gpu, softmax_on_gpu
from filmgate.pipeline.decode.fast.passes import (
    ConvOutput,
    InputLayout,
    InputSpec,
    OutputLayout,
    add_taps_in_torch,
    combine_in_torch,
)
from filmgate.pipeline.encode.encoder import EncodeOptions
from filmgate.pipeline.transfer.colour import Yuv420

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def vaes():
    names = ("wan2.1", "wan2.2", "cogvideox", "ltx", "hunyuanvideo")
    return {name: build_vae(name, CUDA, torch.bfloat16) for name in names}


@pytest.mark.parametrize("channels", [16, 96, 384])
@pytest.mark.parametrize("output_layout", OutputLayout)
@pytest.mark.parametrize("frames", [1, 2, 4])
def test_combine_matches_the_reference(frames, output_layout, channels):
    if output_layout is OutputLayout.POINTS and frames == 1:
        pytest.skip("the transform needs at least two frames")
    layouts = [InputLayout.FRAMES, InputLayout.STACKED if frames == 1 else InputLayout.POINTS]
    for layout, has_residual, keep in itertools.product(layouts, (False, True), (False, True)):
        output = _output(output_layout, frames, channels, has_residual)
        gamma, cache = torch.randn(channels, device=CUDA), _random(2, 6, 10, channels)
        has_cache = layout is not InputLayout.FRAMES or frames == 1
        expected_spec, found_spec = (
            InputSpec(gamma, layout, cache.clone() if has_cache else None) for _ in range(2)
        )
        expected = combine_in_torch(output, expected_spec, keep=keep)
        for _ in range(2):  # through Triton's launch first, then directly
            if has_cache:
                found_spec.cache.copy_(cache)
            found = combine_on_gpu(_copy(output), found_spec, keep=keep)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-2)
            if has_cache:
                torch.testing.assert_close(expected_spec.cache, found_spec.cache, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("channels", [16, 128, 256, 512])
@pytest.mark.parametrize("output_layout", OutputLayout)
@pytest.mark.parametrize(("frames", "repeats"), [(1, 1), (2, 1), (4, 1), (2, 2)])
def test_frames_and_sums_match_the_reference(frames, repeats, output_layout, channels):
    if output_layout is OutputLayout.POINTS and frames == 1:
        pytest.skip("the transform needs at least two frames")
    for has_residual in (False, True):
        output = _output(output_layout, frames, channels, has_residual)
        expected, expected_sums = to_frames_and_sums_in_torch(output, 8, repeats)
        for _ in range(2):  # through Triton's launch first, then directly
            found, sums = to_frames_and_sums_on_gpu(_copy(output), 8, repeats)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-2)
            torch.testing.assert_close(sums.sum(-1, keepdim=True), expected_sums, rtol=1e-3, atol=1e-1)


@pytest.mark.parametrize(("channels", "groups"), [(16, 4), (128, 32), (512, 32)])
@pytest.mark.parametrize("programs", [1, 7, 10_001])
def test_scale_and_shift_match_the_reference(programs, channels, groups):
    norm = GroupNorm(*torch.randn(2, channels, device=CUDA), groups, 1e-6)
    sums = torch.randn(2, groups, programs, device=CUDA)
    sums[1] = sums[1].abs() + 3  # mean squares, larger than the square of any mean
    for _ in range(2):
        found, expected = (
            scale_and_shift_on_gpu(sums, norm, programs),
            scale_and_shift_in_torch(sums, norm, programs),
        )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [16, 128, 256, 512])
@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("zoom", [1, 2])
def test_normalise_matches_the_reference(zoom, frames, latents, channels):
    given, cache = _random(frames, 6, 10, channels), _random(2, 6, 10, channels)
    scale_and_shift = torch.randn(2, channels, device=CUDA)
    modulation = Modulation(scale_and_shift, _random(latents, 6 // zoom, 10 // zoom, 2 * channels))
    layout = InputLayout.POINTS if frames > 1 else InputLayout.FRAMES
    for is_start in (True,) if frames == 1 else (False, True):
        for _ in range(2):
            expected_cache, found_cache = (CausalCache(cache.clone(), is_start) for _ in range(2))
            expected = normalise_in_torch(given, modulation, layout, expected_cache)
            found = normalise_on_gpu(given, modulation, layout, found_cache)
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-2)
            torch.testing.assert_close(found_cache.frames, expected_cache.frames, rtol=2e-3, atol=2e-2)
    expected = normalise_in_torch(given, modulation, InputLayout.FRAMES)
    torch.testing.assert_close(
        normalise_on_gpu(given, modulation, InputLayout.FRAMES), expected, rtol=2e-3, atol=2e-2
    )


@pytest.mark.parametrize("channels", [3, 12])
def test_add_taps_matches_the_reference(channels):
    bias, maps = torch.randn(channels, device=CUDA), _random(7, 6, 10, 3 * channels + 7)
    overlap = torch.randn(channels, 2, 6, 10, device=CUDA)
    overlaps = [overlap.clone() for _ in range(2)]
    for part in maps.split([1, 4, 2]):
        expected, found = add_taps_in_torch(part, bias, overlaps[0]), add_taps_on_gpu(part, bias, overlaps[1])
        torch.testing.assert_close(expected, found, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(*overlaps, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [7, 14400, 32640])
def test_softmax_matches_torch(columns):
    scores = torch.randn(2, 9, columns, device=CUDA) * 30
    expected = scores.double().softmax(-1)
    torch.testing.assert_close(softmax_on_gpu(scores, torch.float16), expected.half(), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(64, 48), (720, 1280)])
def test_colour_conversion_matches_the_reference(size, dtype):
    frames = (torch.randn(3, 4, *size, device=CUDA) * 0.7).to(dtype)
    there, here = (
        torch.zeros(3, *Yuv420().frame_shape(*size), device=CUDA, dtype=torch.uint8) for _ in range(2)
    )
    Yuv420.convert_in_torch(frames[:, -3:], there)
    Yuv420().convert(frames[:, -3:], here)
    assert (there.int() - here.int()).abs().max() <= 1  # rounding of ties may differ
    assert (there != here).float().mean() < 1e-4


def _random(*shape):
    return torch.randn(shape, device=CUDA, dtype=torch.float16)


def _copy(output):
    """A copy, because the kernel may overwrite its inputs."""
    residual = None if output.residual is None else output.residual.clone()
    return replace(output, maps=tuple(one.clone() for one in output.maps), residual=residual)


def _output(layout, frames, channels, has_residual):
    maps = {
        OutputLayout.FRAMES: lambda: (_random(frames, 6, 10, channels),),
        OutputLayout.POINTS: lambda: tuple(_random(1, 6, 10, channels) for _ in range(frames + 2)),
        OutputLayout.PHASES: lambda: (_random(frames, 4, 6, 4 * channels),),
    }[layout]()
    residual = _random(frames, 6, 10, channels) if has_residual else None
    return ConvOutput(layout, maps, torch.randn(channels, device=CUDA), residual)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("wan2.1", (832, 480)),
        ("wan2.2", (832, 480)),
        ("cogvideox", (720, 480)),
        ("ltx", (768, 512)),
        ("hunyuanvideo", (832, 480)),
    ],
)
def test_it_is_closer_to_float32_than_the_exact_decoder_without_a_seam(vaes, name, size):
    found = compare(vaes[name], lambda: random_latents(name, size, 33, vaes[name]))
    assert found.error_ratio <= 0.25  # measured: 0.11, LTX-Video 0.14, HunyuanVideo 0.19
    assert found.worst_frame_ratio <= 0.25
    assert found.seam < 0.1


@pytest.mark.parametrize(
    ("name", "size", "frames", "max_ratio"),
    [
        ("wan2.1", (256, 256), 33, 0.6),
        ("wan2.1", (832, 480), 33, 0.4),
        ("wan2.1", (480, 832), 17, 0.4),
        ("wan2.1", (1280, 720), 33, 0.4),
        ("wan2.1", (1920, 1088), 9, 0.4),
        ("wan2.2", (1280, 704), 33, 0.5),
        ("cogvideox", (720, 480), 49, 0.4),
        ("cogvideox", (1360, 768), 17, 0.4),
        ("ltx", (768, 512), 49, 0.5),
        ("ltx", (1216, 704), 121, 0.5),
        ("hunyuanvideo", (832, 480), 33, 0.4),
    ],
)
def test_it_takes_at_most_this_part_of_the_time_and_no_more_memory(vaes, name, size, frames, max_ratio):
    """The figures of docs/decoder.md with room for another host."""
    seconds, peaks = {}, {}
    # The first round builds the network of the fast decoder, which then takes memory in both measurements.
    for choice in ("fast", "exact", "fast"):
        seconds[choice] = inf
        for n in range(4):
            decoder, ready = prepare(
                vaes[name], random_latents(name, size, frames, vaes[name]), choice=choice
            )
            assert is_fast_decoder(decoder) == (choice == "fast")
            torch.cuda.synchronize()
            if n == 0:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            for _ in decode_frames(decoder, ready):
                pass
            torch.cuda.synchronize()
            seconds[choice] = min(seconds[choice], time.perf_counter() - started)
        peaks[choice] = torch.cuda.max_memory_allocated()
    assert seconds["fast"] <= max_ratio * seconds["exact"]
    assert peaks["fast"] <= peaks["exact"]


@pytest.mark.parametrize(
    ("name", "size", "frames"),
    [("ltx", (768, 512), 49), ("ltx", (1216, 704), 121), ("hunyuanvideo", (832, 480), 33)],
)
def test_it_takes_at_most_half_of_the_time_of_vae_decode(vaes, name, size, frames):
    """What diffusers' pipelines run, for the families whose exact decoder is not the same call."""
    latents = random_latents(name, size, frames, vaes[name])
    decoder, ready = prepare(vaes[name], latents, choice="fast")
    seconds = {"fast": inf, "vae": inf}
    for _ in range(4):
        for way, run in (
            ("fast", lambda: deque(decode_frames(decoder, ready), maxlen=0)),
            ("vae", lambda: decode_with_vae(vaes[name], latents)),
        ):
            torch.cuda.synchronize()
            started = time.perf_counter()
            run()
            torch.cuda.synchronize()
            seconds[way] = min(seconds[way], time.perf_counter() - started)
    assert seconds["fast"] <= 0.5 * seconds["vae"]


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox"])
def test_its_memory_does_not_grow_with_clip_length(vaes, name):
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


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox", "ltx", "hunyuanvideo"])
def test_the_exact_decoder_takes_over_when_values_overflow_float16(name, tmp_path):
    vae = build_vae(name, CUDA, torch.bfloat16)
    with torch.no_grad():
        for weight in vae.decoder.up_blocks[2].resnets[0].conv1.parameters():
            weight.mul_(1e6)
    latents = random_latents(name, (256, 256), 9, vae)
    report = ClipWriter(vae, EncodeOptions(), decoder="fast").write(latents, tmp_path / "clip.mp4")
    assert report.rung == "whole frame"
    assert report.shape.frames == 9


def test_the_network_is_rebuilt_when_weights_change(vaes):
    vae = build_vae("wan2.1", CUDA, torch.bfloat16)
    latents = random_latents("wan2.1", (256, 256), 5, vae)
    before = torch.cat(decode_chunks(vae, latents, "fast"), dim=1)
    with torch.no_grad():
        vae.decoder.conv_out.bias.add_(0.25)
    after = torch.cat(decode_chunks(vae, latents, "fast"), dim=1)
    assert (after - before).mean() == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("name", ["wan2.1", "cogvideox", "ltx", "hunyuanvideo"])
def test_two_clips_at_once_equal_each_decoded_alone(vaes, name):
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
def test_fast_tiles_are_as_close_to_whole_frames_as_exact_tiles(vaes, name):
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
