"""The fast decoder without a GPU: its frames match the VAE's, and the exact decoder takes over on NaN."""

import copy
import itertools
import threading
import weakref
from contextlib import nullcontext
from dataclasses import asdict

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLCogVideoX
from torch.nn.functional import conv2d, interpolate, scaled_dot_product_attention
from triton.runtime.errors import OutOfResources

from filmgate.errors import DecodeError
from filmgate.pipeline.clip_writer import ClipWriter, FrameSource, make_ready, stream_frames
from filmgate.pipeline.control import Control
from filmgate.pipeline.decode import open_fast
from filmgate.pipeline.decode.base import Rung, decode_frames
from filmgate.pipeline.decode.fast import group_passes, passes
from filmgate.pipeline.decode.fast.decoder import FastDecoder
from filmgate.pipeline.decode.fast.group_kernels import (
    normalise_on_gpu,
    scale_and_shift_on_gpu,
    to_frames_and_sums_on_gpu,
)
from filmgate.pipeline.decode.fast.kernels import add_taps_on_gpu, combine_on_gpu
from filmgate.pipeline.decode.fast.passes import ConvOutput, InputLayout, OutputLayout, input_shapes
from filmgate.pipeline.decode.fast.two_streams import TwoStreamNetwork
from filmgate.pipeline.decode.fast.wan import MAX_QUERIES, Upsample, attend
from filmgate.pipeline.encode.encoder import EncodeOptions
from filmgate.pipeline.transfer.colour import Rgb24
from filmgate.pipeline.transfer.loops import HostChunk
from tests.zoo_vaes import COGVIDEOX, build_vae, draw_latents

FAST = ("wan2.1", "wan2.2", "cogvideox")


@pytest.fixture(params=FAST)
def name(request):
    return request.param


@torch.inference_mode()
def frames_of(decoder, latents, *, fast=True):
    chosen = decoder if fast else decoder.exact
    latents = chosen.to_vae_latents(latents)
    rung = chosen.rungs(latents)[0]
    return torch.cat([chunk.clone() for chunk in chosen.chunks(latents, rung)], dim=1)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 7])
def test_float32_frames_match_those_of_the_vae(name, frames):
    vae = build_vae(name)
    latents = draw_latents(name, vae, frames)
    decoder = open_fast(vae, torch.float32)
    torch.testing.assert_close(
        frames_of(decoder, latents), frames_of(decoder, latents, fast=False), rtol=0, atol=2e-5
    )


@pytest.mark.parametrize(
    ("name", "frames"), [("wan2.1", 3), ("wan2.2", 3), ("cogvideox", 2), ("cogvideox", 5)]
)
def test_the_kernels_overwrite_only_tensors_that_are_no_longer_needed(name, frames, monkeypatch):
    """Runs the whole network with the kernels, which work in place, in Triton's interpreter."""
    monkeypatch.setattr(passes, "combine_in_torch", combine_on_gpu)
    monkeypatch.setattr(passes, "add_taps_in_torch", add_taps_on_gpu)
    monkeypatch.setattr(group_passes, "to_frames_and_sums_in_torch", to_frames_and_sums_on_gpu)
    monkeypatch.setattr(group_passes, "scale_and_shift_in_torch", scale_and_shift_on_gpu)
    monkeypatch.setattr(group_passes, "normalise_in_torch", normalise_on_gpu)
    vae = build_vae(name)
    latents = draw_latents(name, vae, frames, size=(2, 2))
    decoder = open_fast(vae, torch.float32)
    torch.testing.assert_close(
        frames_of(decoder, latents), frames_of(decoder, latents, fast=False), rtol=0, atol=2e-5
    )


@torch.inference_mode()
def test_tiles_match_those_of_the_exact_decoder(name):
    vae = build_vae(name)
    latents = draw_latents(name, vae, 4, size=(6, 9))
    decoder = open_fast(vae, torch.float32)
    for is_offloaded in (False, True):
        rung = Rung("tiles", 64, is_cache_offloaded=is_offloaded)
        fast, expected = (
            torch.cat([chunk.clone() for chunk in one.chunks(one.to_vae_latents(latents), rung)], dim=1)
            for one in (decoder, decoder.exact)
        )
        torch.testing.assert_close(fast, expected, rtol=0, atol=2e-5)


def test_half_precision_is_closer_to_float32_than_bfloat16_layers(name):
    exact = build_vae(name)
    half = copy.deepcopy(exact).to(torch.bfloat16)
    latents = draw_latents(name, exact, 3)
    truth = frames_of(open_fast(half.float(), torch.float32), latents, fast=False)
    half = half.to(torch.bfloat16)
    decoder = open_fast(half)
    ours, theirs = (frames_of(decoder, latents.bfloat16(), fast=fast).float() for fast in (True, False))
    assert (ours - truth).norm() < (theirs - truth).norm() / 2


def test_two_clips_at_once_equal_each_decoded_alone(name):
    vae = build_vae(name)
    decoder = open_fast(vae, torch.float32)
    clips = [draw_latents(name, vae, 4, seed=seed) for seed in (1, 2)]
    alone = [frames_of(decoder, clip) for clip in clips]
    ready = [decoder.to_vae_latents(clip) for clip in clips]
    rung = decoder.rungs(ready[0])[0]
    with torch.inference_mode():
        pairs = list(zip(*(decoder.chunks(clip, rung) for clip in ready), strict=True))
    for n, expected in enumerate(alone):
        assert torch.equal(torch.cat([pair[n] for pair in pairs], dim=1), expected)


class FakeStream:
    """Lists what a CUDA stream would wait for, and the events recorded on it."""

    def __init__(self, name, log):
        self.name, self._log, self.device = name, log, None

    def record_event(self):
        event = f"{self.name} {len(self._log)}"
        self._log.append(("record", self.name, event))
        return event

    def wait_event(self, event):
        self._log.append(("wait", self.name, event))

    def wait_stream(self, other):
        self._log.append(("join", self.name, other.name))


def test_the_lower_stream_frees_what_the_upper_half_reads_after_it_waits_for_it(monkeypatch):
    """Then the memory is free in the order of the lower stream, where the next tenant's job overwrites it."""
    log, made = [], []

    class Halves:
        def lower(self, chunk, _caches):
            log.append(("lower", [ref() is not None for ref in made]))
            tensor = torch.zeros(1)
            made.append(weakref.ref(tensor))
            return ConvOutput(OutputLayout.FRAMES, (tensor,))

        def upper(self, output, _caches):
            output.maps = ()  # as `combine` does
            log.append(("upper", [ref() is not None for ref in made]))
            return torch.zeros(1)

    network = TwoStreamNetwork(Halves(), torch.device("cpu"))
    network._lower_stream = FakeStream("lower", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: FakeStream("upper", log))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    for _ in network.decode(torch.zeros(4, 1)):
        pass
    alive = [entry for entry in log if entry[0] in ("lower", "upper")]
    assert alive == [
        ("lower", []),
        ("upper", [True]),
        ("lower", [True]),
        ("upper", [False, True]),
        ("lower", [False, True]),
        ("upper", [False, False, True]),
        ("lower", [False, False, True]),
        ("upper", [False, False, False, True]),
    ]
    for n in range(3):  # before the tensor of chunk n is freed, the lower stream waits for its upper half
        read, freed = (log.index(("upper", [False] * each + [True])) for each in (n, n + 1))
        done = next(event for kind, stream, event in log[read + 1 :] if (kind, stream) == ("record", "upper"))
        assert ("wait", "lower", done) in log[read:freed]
    assert log[-2:] == [("join", "lower", "upper"), ("join", "upper", "lower")]
    assert made[-1]() is None


@pytest.fixture
def fast_on_cpu(monkeypatch):
    """`auto` uses the fast decoder, as on a GPU."""
    monkeypatch.setattr("filmgate.pipeline.clip_writer.open_decoder", lambda vae, *_: open_fast(vae))


@pytest.mark.usefixtures("fast_on_cpu")
def test_the_exact_decoder_takes_over_when_values_overflow_float16(name, caplog, tmp_path):
    vae = build_vae(name).to(torch.bfloat16)
    with torch.no_grad():
        for weight in vae.decoder.up_blocks[1].resnets[0].conv1.parameters():
            weight.mul_(1e8)
    latents = draw_latents(name, vae, 3)
    report = ClipWriter(vae, EncodeOptions()).write(latents, tmp_path / "fast.mp4")
    assert report.rung == "whole frame"
    assert report.shape.frames == 9
    [record] = [record for record in caplog.records if "NaN or infinity" in record.message]
    assert record.fields == {"frames": 0}
    fallback = open_fast(vae).exact
    ready, _ = make_ready(fallback, latents, vae.device, vae.dtype)
    exact = torch.cat(list(decode_frames(fallback, ready)), dim=1)
    expected = torch.empty(9, *exact.shape[2:], 3, dtype=torch.uint8)
    Rgb24().convert(exact, expected)
    assert np.array_equal(np.concatenate(list(stream_frames(vae, latents))), expected.numpy())


@pytest.mark.usefixtures("fast_on_cpu")
def test_the_decoder_may_finish_before_the_first_chunk_is_checked(monkeypatch, tmp_path):
    """Another thread reads the flag of a chunk at any time after the decoder has continued."""
    wait = HostChunk.wait

    def late(chunk):
        is_last.wait(60)
        return wait(chunk)

    def watched(*given):
        yield from real(*given)
        is_last.set()

    is_last, real = threading.Event(), FrameSource._chunks
    monkeypatch.setattr(HostChunk, "wait", late)
    monkeypatch.setattr(FrameSource, "_chunks", watched)
    vae = build_vae("wan2.1").to(torch.bfloat16)
    return_nan(monkeypatch, at=1)
    report = ClipWriter(vae, EncodeOptions()).write(draw_latents("wan2.1", vae, 3), tmp_path / "clip.mp4")
    assert report.rung == "whole frame"
    assert min(asdict(report.phases).values()) >= 0
    assert sum(asdict(report.phases).values()) == pytest.approx(report.seconds)


@pytest.mark.usefixtures("fast_on_cpu")
def test_the_exact_decoder_waits_for_the_device_which_another_clip_may_use_meanwhile(monkeypatch, tmp_path):
    vae = build_vae("wan2.1").to(torch.bfloat16)
    latents, calls = draw_latents("wan2.1", vae, 3), []
    writer, chunks = ClipWriter(vae, EncodeOptions()), FastDecoder.chunks
    return_nan(monkeypatch, at=1)

    def enter():
        """The next clip has the device, and the buffers of the same writer, until it is written."""
        calls.append("enter")
        monkeypatch.setattr(FastDecoder, "chunks", chunks)
        other = threading.Thread(target=writer.write, args=(latents, tmp_path / "next.mp4"))
        other.start()
        other.join(60)
        assert (tmp_path / "next.mp4").exists()

    control = Control()
    control.enter_device, control.leave_device = enter, lambda: calls.append("leave")
    assert writer.write(latents, tmp_path / "clip.mp4", control=control).rung == "whole frame"
    assert calls[-2:] == ["enter", "leave"]


@pytest.mark.usefixtures("fast_on_cpu")
def test_frames_before_the_first_non_finite_one_are_kept(monkeypatch):
    vae = build_vae("wan2.1").to(torch.bfloat16)
    latents = draw_latents("wan2.1", vae, 4)
    expected = np.concatenate(list(stream_frames(vae, latents)))
    return_nan(monkeypatch, at=2)
    found = np.concatenate(list(stream_frames(vae, latents)))
    assert len(found) == len(expected) == 13
    assert np.array_equal(found[:5], expected[:5])  # two chunks of the fast decoder, each once
    monkeypatch.undo()
    exact = np.concatenate(list(stream_frames(vae, latents)))  # a CPU uses the exact decoder
    assert np.array_equal(found[5:], exact[5:])


@pytest.mark.usefixtures("fast_on_cpu")
def test_the_exact_decoder_continues_where_a_kernel_cannot_run(monkeypatch, caplog):
    """Kernels are compiled for some sizes only when a clip needs them."""
    vae = build_vae("wan2.1").to(torch.bfloat16)
    latents, chunks = draw_latents("wan2.1", vae, 4), FastDecoder.chunks
    expected = np.concatenate(list(stream_frames(vae, latents)))

    def broken(self, latents, rung):
        yield from itertools.islice(chunks(self, latents, rung), 2)
        raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(FastDecoder, "chunks", broken)
    found = np.concatenate(list(stream_frames(vae, latents)))
    assert "could not run a kernel" in caplog.text
    assert len(found) == len(expected) == 13
    assert np.abs(found.astype(int) - expected).mean() < 5


def return_nan(monkeypatch, at):
    """Make the frames of the fast decoder NaN from chunk `at` on."""
    chunks = FastDecoder.chunks

    def broken(self, latents, rung):
        for n, frames in enumerate(chunks(self, latents, rung)):
            yield frames if n < at else frames * float("nan")

    monkeypatch.setattr(FastDecoder, "chunks", broken)


def test_non_finite_frames_of_the_exact_decoder_are_an_error(tmp_path):
    vae = build_vae("wan2.1")
    with torch.no_grad():
        vae.decoder.conv_out.bias.fill_(float("nan"))
    with pytest.raises(DecodeError, match="the decoder produced NaN"):
        ClipWriter(vae, EncodeOptions()).write(draw_latents("wan2.1", vae, 2), tmp_path / "clip.mp4")


def test_the_network_is_rebuilt_when_weights_change(name):
    vae = build_vae(name)
    latents = draw_latents(name, vae, 2)
    before = frames_of(open_fast(vae, torch.float32), latents)
    with torch.no_grad():
        list(vae.decoder.conv_out.parameters())[-1].add_(0.1)  # its bias
    changed = open_fast(vae, torch.float32)
    after = frames_of(changed, latents)
    torch.testing.assert_close(after, frames_of(changed, latents, fast=False), rtol=0, atol=2e-5)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize(
    "config",
    [
        {"temporal_compression_ratio": 1},
        {"temporal_compression_ratio": 2},
        {"temporal_compression_ratio": 8},
        {"block_out_channels": (8, 16, 16, 32), "norm_num_groups": 4},
        {"latent_channels": 3, "use_post_quant_conv": True},
    ],
)
def test_every_supported_cogvideox_matches_its_own_layers(config):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        vae = AutoencoderKLCogVideoX(**COGVIDEOX | config).eval()
    decoder = open_fast(vae, torch.float32)
    latents = draw_latents("cogvideox", vae, 5)
    torch.testing.assert_close(
        frames_of(decoder, latents), frames_of(decoder, latents, fast=False), rtol=0, atol=2e-5
    )


def test_upsampling_by_phases_equals_upsampling_then_convolving():
    resample = build_vae("wan2.1").decoder.up_blocks[2].upsamplers[0]
    picture = torch.randn(2, 5, 7, resample.dim)
    phases = Upsample(resample, torch.float32)(ConvOutput(OutputLayout.FRAMES, (picture,)), caches=None)
    conv = resample.resample[1]
    large = interpolate(picture.permute(0, 3, 1, 2), scale_factor=2, mode="nearest-exact")
    expected = conv2d(large, conv.weight, conv.bias, padding=1).permute(0, 2, 3, 1)
    assert phases.shape == tuple(expected.shape)
    whole = phases.maps[0].view(2, 6, 8, 2, 2, -1)
    for down in range(2):
        for right in range(2):
            part = whole[:, down : down + 5, right : right + 7, down, right] + phases.bias
            torch.testing.assert_close(part, expected[:, down::2, right::2])


@pytest.mark.parametrize("pixels", [5, MAX_QUERIES + 3])
def test_attention_in_parts_equals_attention(pixels):
    query, key, value = torch.randn(3, 1, pixels, 8).unbind(0)
    torch.testing.assert_close(
        attend(query * 8**-0.5, key, value),
        scaled_dot_product_attention(query, key, value),
        rtol=1e-4,
        atol=1e-5,
    )


def test_the_points_layout_has_one_map_per_product():
    assert input_shapes(InputLayout.POINTS, (4, 6, 8, 96)) == [(1, 6, 8, 96)] * 6
    assert input_shapes(InputLayout.STACKED, (2, 6, 8, 96)) == [(2, 6, 8, 288)]
    assert input_shapes(InputLayout.FRAMES, (4, 6, 8, 96)) == [(4, 6, 8, 96)]
