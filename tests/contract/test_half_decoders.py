"""The fast decoders of LTX-Video and HunyuanVideo: in float32 on a CPU they equal the VAE's own layers."""

import pytest
import torch

from filmgate.pipeline.decode.base import WHOLE_FRAME, Rung
from filmgate.pipeline.decode.fast import decoder
from filmgate.pipeline.decode.fast.activation_kernels import activate_on_gpu
from filmgate.pipeline.decode.fast.decoder import open_fast, passes_self_test, unsupported_reason
from filmgate.pipeline.decode.fast.half import activate_in_torch
from tests.zoo_vaes import build_vae

CUDA = torch.device("cuda")


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
    torch.manual_seed(0)
    found = frames_of(fast, latents)
    torch.manual_seed(0)  # some layers of LTX add noise
    torch.testing.assert_close(found, frames_of(fast.exact, latents), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("border", [(0, 0), (2, 1)])
@pytest.mark.parametrize("epsilon", [None, 1e-8])
@pytest.mark.parametrize("is_active", [True, False])
def test_the_kernel_matches_the_reference(border, epsilon, is_active):
    frames = torch.randn(1, 12, 2, 3, 5).contiguous(memory_format=torch.channels_last_3d)
    modulation = (torch.randn(12), torch.randn(12)) if is_active else None
    expected = activate_in_torch(frames, modulation, epsilon, border, is_active=is_active)
    found = activate_on_gpu(frames, modulation, epsilon, border, is_active=is_active)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("name", ["ltx-0.9.5", "hunyuanvideo"])
def test_they_pass_the_self_test_and_leave_the_random_numbers_alone(name, monkeypatch):
    monkeypatch.setattr(decoder, "SELF_TEST_SIZE", (2, 3))
    vae = build_vae(name)
    before = torch.get_rng_state()
    assert passes_self_test(open_fast(vae, torch.float32), vae)
    assert torch.equal(torch.get_rng_state(), before)


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
