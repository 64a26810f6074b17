"""The one-pass VAE of the training matches the stock VAE, which works in chunks."""

import pytest
import torch
from training.flipbook.networks import TINY, build_vae
from training.flipbook.whole_clip import decode_latents, encode_clips, use_channels_last


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    vae = build_vae(TINY).eval().requires_grad_(False)
    for weight in vae.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.02)
    return vae


@pytest.mark.parametrize("frames", [5, 13])
def test_encoding_a_whole_clip_gives_the_stock_latents(vae, frames):
    clips = torch.rand(2, 3, frames, 32, 48) * 2 - 1
    mean, log_variance = encode_clips(vae, clips)
    stock = vae.encode(clips).latent_dist
    assert mean.std() > 0.05
    torch.testing.assert_close(mean, stock.mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(log_variance, stock.logvar, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("latent_frames", [2, 4])
def test_decoding_whole_latents_gives_the_stock_clip(vae, latent_frames):
    latents = torch.randn(2, TINY.latent_channels, latent_frames, 2, 3)
    stock = vae.decode(latents).sample
    assert stock.shape == (2, 3, 4 * latent_frames - 3, 32, 48)
    torch.testing.assert_close(decode_latents(vae, latents).clamp(-1, 1), stock, atol=2e-5, rtol=1e-4)


def test_channels_last_weights_give_the_same_frames(vae):
    latents = torch.randn(1, TINY.latent_channels, 2, 2, 2)
    before = decode_latents(vae, latents)
    use_channels_last(vae)
    torch.testing.assert_close(decode_latents(vae, latents), before, atol=2e-5, rtol=1e-4)
