"""A random-weight Wan pipeline small enough to build in code: real code path, abstract pictures."""

from typing import Any

import torch

MINIATURE = "miniature"


def build_miniature(seed: int = 0) -> Any:
    """A WanPipeline of 100,000 random weights with a byte tokenizer; nothing is downloaded."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import ByT5Tokenizer, UMT5Config, UMT5EncoderModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = AutoencoderKLWan(
            base_dim=8,
            z_dim=4,
            dim_mult=[1, 2, 2, 2],
            num_res_blocks=1,
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        )
        transformer = WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=4,
            out_channels=4,
            text_dim=32,
            freq_dim=64,
            ffn_dim=64,
            num_layers=2,
        )
        text_encoder = UMT5EncoderModel(
            UMT5Config(vocab_size=384, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
        )
    pipe = WanPipeline(
        tokenizer=ByT5Tokenizer(),
        text_encoder=text_encoder.eval(),
        transformer=transformer.eval(),
        vae=vae.eval(),
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
