"""The fast decoders of LTX-Video and HunyuanVideo: in float32 on a CPU they equal the VAE's own layers."""

import pytest
import torch

from filmgate.pipeline import decode
from filmgate.pipeline.decode import MAX_SELF_TEST_ERROR, open_fast, self_test_error, unsupported_reason
from filmgate.pipeline.decode.base import WHOLE_FRAME, Rung
from filmgate.pipeline.decode.fast import activation_kernels, conv3d
from filmgate.pipeline.decode.fast.activation import (
    Border,
    NormActivation,
    activate_in_torch,
    add_to,
    channel_sums,
    empty_frames,
)
from filmgate.pipeline.decode.fast.activation_kernels import (
    activate_on_gpu,
    add_on_gpu,
    channel_sums_on_gpu,
)
from tests.zoo_vaes import build_vae

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def winograd_for_small_pictures_too(monkeypatch):
    monkeypatch.setattr(conv3d, "MIN_PIXELS", 0)


def frames_of(one, latents, rung=WHOLE_FRAME):
    with torch.inference_mode():
        return torch.cat(list(one.chunks(one.to_vae_latents(latents), rung)), dim=1)


@pytest.mark.parametrize(
    ("name", "length"), [("ltx", 3), ("ltx-0.9.5", 2), ("hunyuanvideo", 2), ("hunyuanvideo", 7)]
)
def test_the_fast_decoder_equals_the_exact_one_in_float32(name, length):
    vae = build_vae(name)
    latents = torch.randn(1, vae.config.latent_channels, length, 3, 4)
    fast = open_fast(vae, torch.float32)
    torch.testing.assert_close(frames_of(fast, latents), frames_of(fast.exact, latents), rtol=1e-3, atol=1e-4)


def test_the_fast_decoder_adds_the_noise_of_the_exact_one():
    vae = build_vae("ltx", decoder_inject_noise=(True,) * 5)
    for name, scale in vae.named_parameters():
        if "per_channel_scale" in name:
            torch.nn.init.constant_(scale, 0.3)
    fast, latents = open_fast(vae, torch.float32), torch.randn(1, 8, 2, 3, 4)
    torch.testing.assert_close(frames_of(fast, latents), frames_of(fast.exact, latents), rtol=1e-3, atol=1e-4)


def draw(channels=12, length=2):
    return torch.randn(1, channels, length, 3, 5).contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("border", [Border(), Border(before=2, side=1), Border(before=1, after=2)])
@pytest.mark.parametrize("epsilon", [None, 1e-8])
@pytest.mark.parametrize("is_active", [True, False])
def test_the_activation_kernel_matches_the_reference(border, epsilon, is_active):
    frames = draw()
    modulation = (torch.randn(12), torch.randn(12)) if is_active else None
    bias = torch.randn(12) if epsilon is not None else None
    steps = NormActivation(bias, epsilon, modulation, is_active)
    expected = activate_in_torch(frames, steps, border)
    found = empty_frames(tuple(expected.shape[1:]), frames)
    activate_on_gpu(frames, steps, border, found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("has_other", [True, False])
def test_the_addition_kernel_matches_the_reference(has_bias, has_other):
    frames, bias, other = draw(length=5), torch.randn(12) if has_bias else None, draw() if has_other else None
    part = frames[:, :, 1:3]  # in place, in the middle of a clip
    expected = add_to(part.clone(), bias, other)
    before = frames.clone()
    add_on_gpu(part, bias, other)
    torch.testing.assert_close(frames[:, :, 1:3], expected)
    assert torch.equal(frames[:, :, :1], before[:, :, :1])
    assert torch.equal(frames[:, :, 3:], before[:, :, 3:])


@pytest.mark.parametrize("length", [1, 40])
def test_the_kernel_of_channel_sums_matches_the_reference(length, monkeypatch):
    monkeypatch.setattr(activation_kernels, "MAX_SUM_PROGRAMS", 2)
    frames = draw(length=length)
    for found, expected in zip(channel_sums_on_gpu(frames), channel_sums(frames), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["ltx-0.9.5", "hunyuanvideo"])
def test_fast_decoders_pass_the_self_test(name, monkeypatch):
    monkeypatch.setattr(decode, "SELF_TEST_SIZE", (2, 3))
    vae = build_vae(name)
    assert self_test_error(open_fast(vae, torch.float32), vae) < MAX_SELF_TEST_ERROR


@pytest.mark.parametrize("name", ["ltx", "hunyuanvideo"])
def test_both_have_a_fast_decoder_on_a_gpu(name):
    vae = build_vae(name).to(torch.bfloat16)
    assert unsupported_reason(vae, CUDA) is None


def test_unsupported_layers_are_named():
    vae = build_vae("hunyuanvideo").to(torch.bfloat16)
    vae.decoder.conv_in.pad_mode = "constant"
    assert "do not repeat the border" in (unsupported_reason(vae, CUDA) or "")
    vae = build_vae("ltx").to(torch.bfloat16)
    vae.decoder.mid_block.resnets[0].nonlinearity = torch.nn.GELU()
    assert "GELU" in (unsupported_reason(vae, CUDA) or "")


def test_tiles_use_the_layers_of_the_vae():
    vae = build_vae("hunyuanvideo")
    latents, tiles = torch.randn(1, vae.config.latent_channels, 2, 4, 4), Rung("tiles", 16)
    fast = open_fast(vae, torch.float32)
    assert torch.equal(frames_of(fast, latents, tiles), frames_of(fast.exact, latents, tiles))
