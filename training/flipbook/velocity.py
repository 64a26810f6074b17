"""The forward pass of the transformer for training: on tokens, with the padding of the text folded.

Stock `WanPipeline` pads every prompt to 512 embeddings with zeros, which all take part in cross-attention.
They are equal, so one key replaces all of them if its score is raised by the logarithm of their number: the
same result with a tenth of the keys. tests/training/test_velocity.py compares it with the stock forward pass.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel
from torch import Tensor

from training.flipbook.networks import PATCH

PIPELINE_TEXT_LENGTH = 512
TEXT_LENGTH = 48  # tokens per prompt; the last one stands for the folded padding


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Encoded prompts [batch, tokens, width], and the attention bias of each token [batch, 1, 1, tokens]."""

    embeddings: Tensor
    bias: Tensor


def fold_padding(embeddings: Tensor, lengths: Tensor) -> EncodedPrompt:
    """Set everything after each prompt to zero. The last token stands for all 512 - length paddings."""
    positions = torch.arange(embeddings.shape[1], device=embeddings.device)
    is_word = positions < lengths.unsqueeze(1)
    bias = torch.full(is_word.shape, -math.inf, device=embeddings.device).masked_fill(is_word, 0.0)
    bias[:, -1] = torch.log((PIPELINE_TEXT_LENGTH - lengths).float())
    return EncodedPrompt(embeddings * is_word.unsqueeze(2), bias[:, None, None, :])


def encode_prompts(text_encoder: Any, ids: Tensor, lengths: Tensor) -> EncodedPrompt:
    """ids: [batch, tokens]; the last token is always padding."""
    mask = (torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)).long()
    return fold_padding(text_encoder(ids, mask).last_hidden_state, lengths)


def to_tokens(latents: Tensor) -> Tensor:
    """[batch, channels, t, h, w] to [batch, t * h/2 * w/2, channels * 4], as the stock patch embedding."""
    batch, channels, t, h, w = latents.shape
    x = latents.view(batch, channels, t, h // PATCH, PATCH, w // PATCH, PATCH)
    return x.permute(0, 2, 3, 5, 1, 4, 6).reshape(batch, t * h * w // PATCH**2, channels * PATCH**2)


def rotary_tables(transformer: WanTransformer3DModel, grid: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every token's position, per pair of features: [1, 1, tokens, head_width / 2]."""
    like = torch.empty(1, 1, *grid, device=transformer.rope.freqs_cos.device)
    cos, sin = transformer.rope(like)
    return cos[:, :, 0, 0::2].unsqueeze(1).float(), sin[:, :, 0, 1::2].unsqueeze(1).float()


def run_transformer(
    transformer: WanTransformer3DModel,
    tokens: Tensor,
    time: Tensor,
    embeddings: Tensor,
    bias: Tensor,
    rotary: tuple[Tensor, Tensor],
) -> Tensor:
    """The velocity (noise minus clip) of noisy tokens; time runs from 0 to 1000, as in the schedulers."""
    x = F.linear(tokens, transformer.patch_embedding.weight.flatten(1), transformer.patch_embedding.bias)
    embedded_time, modulation, text, _ = transformer.condition_embedder(time, embeddings)
    modulation = modulation.unflatten(1, (6, -1))
    for block in transformer.blocks:
        x = _run_block(block, x, text, bias, modulation, rotary)
    shift, scale = (transformer.scale_shift_table + embedded_time.unsqueeze(1)).chunk(2, dim=1)
    x = (transformer.norm_out(x.float()) * (1 + scale) + shift).type_as(x)
    y = transformer.proj_out(x)
    # The output projection orders position in the patch before channel; tokens have the opposite order.
    return y.unflatten(2, (PATCH**2, -1)).transpose(2, 3).flatten(2)


def _run_block(
    block: Any, x: Tensor, text: Tensor, bias: Tensor, modulation: Tensor, rotary: tuple[Tensor, Tensor]
) -> Tensor:
    table = (block.scale_shift_table + modulation.float()).chunk(6, dim=1)
    shift, scale, gate, feed_shift, feed_scale, feed_gate = table
    y = (block.norm1(x.float()) * (1 + scale) + shift).type_as(x)
    x = (x.float() + _attend(block.attn1, y, y, None, rotary) * gate).type_as(x)
    y = block.norm2(x.float()).type_as(x)
    x = x + _attend(block.attn2, y, text, bias, None)
    y = (block.norm3(x.float()) * (1 + feed_scale) + feed_shift).type_as(x)
    return (x.float() + block.ffn(y).float() * feed_gate).type_as(x)


def _attend(
    attention: Any, x: Tensor, memory: Tensor, bias: Tensor | None, rotary: tuple[Tensor, Tensor] | None
) -> Tensor:
    query = _heads(attention.norm_q(attention.to_q(x)), attention.heads)
    key = _heads(attention.norm_k(attention.to_k(memory)), attention.heads)
    value = _heads(attention.to_v(memory), attention.heads)
    if rotary is not None:
        query, key = _rotate(query, rotary), _rotate(key, rotary)
    query, key = query.type_as(value), key.type_as(value)
    mask = None if bias is None else bias.to(value.dtype).expand(-1, attention.heads, query.shape[2], -1)
    y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attention.to_out[0](y.transpose(1, 2).flatten(2))


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotary
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
