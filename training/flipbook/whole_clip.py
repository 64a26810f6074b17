"""The VAE on a whole clip in one pass, for training: without a feature cache, and easy to compile.

`AutoencoderKLWan` processes a clip in chunks and passes features from one to the next. Its convolutions are
causal, so a single pass computes the same numbers if the first frame skips the temporal resampling.
tests/training/test_whole_clip.py compares both.
"""

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import patchify, unpatchify
from torch import Tensor


def encode_clips(vae: AutoencoderKLWan, clips: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log variance of the latents of [clips, 3, 1 + 4n, height, width], n at least 1."""
    encoder = vae.encoder
    x = encoder.conv_in(patchify(clips, vae.config.patch_size))
    for block in encoder.down_blocks:
        y = _run(block.resnets, x)
        if block.downsampler is not None:
            y = _downsample(block.downsampler, y)
        x = y + block.avg_shortcut(x)
    x = _run_middle(encoder.mid_block, x)
    x = vae.quant_conv(encoder.conv_out(F.silu(encoder.norm_out(x))))
    mean, log_variance = x.chunk(2, dim=1)
    return mean, log_variance.clamp(-30, 20)


def decode_latents(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """The clips of the latents, not clamped: a pixel out of range keeps its gradient."""
    decoder = vae.decoder
    x = _run_middle(decoder.mid_block, decoder.conv_in(vae.post_quant_conv(latents)))
    for block in decoder.up_blocks:
        y = _run(block.resnets, x)
        if block.upsampler is not None:
            y = _upsample(block.upsampler, y) + block.avg_shortcut(x, first_chunk=True)
        x = y
    x = decoder.conv_out(F.silu(decoder.norm_out(x)))
    return unpatchify(x, vae.config.patch_size)


def measure_psnr(output: Tensor, target: Tensor) -> Tensor:
    """The PSNR of each clip in dB; pixels are between -1 and 1."""
    return -10 * torch.log10(((output.float().clamp(-1, 1) - target) / 2).square().flatten(1).mean(1))


def _run(resnets: Any, x: Tensor) -> Tensor:
    for resnet in resnets:
        x = resnet(x)
    return x


def _run_middle(middle: Any, x: Tensor) -> Tensor:
    x = middle.resnets[0](x)
    return middle.resnets[1](middle.attentions[0](x))


def _downsample(sampler: Any, x: Tensor) -> Tensor:
    x = _per_frame(sampler.resample, x)
    if sampler.mode != "downsample3d":
        return x
    return torch.cat([x[:, :, :1], sampler.time_conv(x)], dim=2)


def _upsample(sampler: Any, x: Tensor) -> Tensor:
    if sampler.mode == "upsample3d":
        rest = sampler.time_conv(x[:, :, 1:]).unflatten(1, (2, x.shape[1]))
        rest = torch.stack([rest[:, 0], rest[:, 1]], dim=3).flatten(2, 3)
        x = torch.cat([x[:, :, :1], rest], dim=2)
    return _per_frame(sampler.resample, x)


def _per_frame(layer: Any, x: Tensor) -> Tensor:
    clips, _, frames, _, _ = x.shape
    y = layer(x.transpose(1, 2).flatten(0, 1))
    return y.unflatten(0, (clips, frames)).transpose(1, 2)


def use_channels_last(vae: AutoencoderKLWan) -> None:
    """Store weights channels-last, the fastest layout for tensor cores and oneDNN. Results do not change."""
    for module in vae.modules():
        if isinstance(module, torch.nn.Conv3d):
            module.weight.data = module.weight.data.to(memory_format=torch.channels_last_3d)
        elif isinstance(module, torch.nn.Conv2d):
            module.weight.data = module.weight.data.to(memory_format=torch.channels_last)
