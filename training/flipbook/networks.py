"""The three networks of Flipbook, in the diffusers Wan layout, and their sizes."""

from dataclasses import dataclass

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

TIME_STRIDE = 4
SPACE_STRIDE = 16
PATCH = 2  # one token per 2 x 2 latent pixels: 32 x 32 pixels


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths and depths. The defaults are those of the shipped model; tests use smaller ones."""

    latent_channels: int = 24
    encoder_width: int = 16
    decoder_width: int = 24
    residual_blocks: int = 1
    heads: int = 6
    head_width: int = 64
    layers: int = 6
    feed_forward: int = 1024
    text_width: int = 256
    text_layers: int = 2
    text_heads: int = 4
    text_feed_forward: int = 384


TINY = Sizes(
    latent_channels=8, encoder_width=4, decoder_width=4, heads=2, head_width=24, layers=2, feed_forward=64,
    text_width=32, text_layers=1, text_heads=2, text_feed_forward=32,
)  # fmt: skip


def build_vae(sizes: Sizes) -> AutoencoderKLWan:
    channels = sizes.latent_channels
    return AutoencoderKLWan(
        base_dim=sizes.encoder_width,
        decoder_base_dim=sizes.decoder_width,
        z_dim=channels,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=sizes.residual_blocks,
        temperal_downsample=[False, True, True],
        latents_mean=[0.0] * channels,
        latents_std=[1.0] * channels,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_temporal=TIME_STRIDE,
        scale_factor_spatial=SPACE_STRIDE,
    )


def build_transformer(sizes: Sizes) -> WanTransformer3DModel:
    transformer = WanTransformer3DModel(
        patch_size=(1, PATCH, PATCH),
        num_attention_heads=sizes.heads,
        attention_head_dim=sizes.head_width,
        in_channels=sizes.latent_channels,
        out_channels=sizes.latent_channels,
        text_dim=sizes.text_width,
        freq_dim=256,
        ffn_dim=sizes.feed_forward,
        num_layers=sizes.layers,
        rope_max_seq_len=1024,
    )
    _initialise(transformer)
    return transformer


def _initialise(transformer: WanTransformer3DModel) -> None:
    """Every block starts as the identity and the output as zero, as is usual for diffusion transformers."""
    width = transformer.config.num_attention_heads * transformer.config.attention_head_dim
    for module in transformer.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)
    for block in transformer.blocks:
        torch.nn.init.zeros_(block.scale_shift_table)
        torch.nn.init.zeros_(block.attn2.to_out[0].weight)
    patch = transformer.patch_embedding
    torch.nn.init.xavier_uniform_(patch.weight.view(width, -1))
    torch.nn.init.zeros_(patch.bias)
    torch.nn.init.zeros_(transformer.condition_embedder.time_proj.weight)
    torch.nn.init.normal_(transformer.condition_embedder.time_embedder.linear_1.weight, std=0.02)
    torch.nn.init.normal_(transformer.condition_embedder.time_embedder.linear_2.weight, std=0.02)
    torch.nn.init.zeros_(transformer.proj_out.weight)


def build_text_encoder(sizes: Sizes, vocabulary: int) -> UMT5EncoderModel:
    config = UMT5Config(
        vocab_size=vocabulary,
        d_model=sizes.text_width,
        d_kv=sizes.text_width // sizes.text_heads,
        d_ff=sizes.text_feed_forward,
        num_layers=sizes.text_layers,
        num_heads=sizes.text_heads,
        dropout_rate=0.0,
        is_encoder_decoder=False,
        use_cache=False,
        pad_token_id=0,
        eos_token_id=1,
    )
    return UMT5EncoderModel(config)
