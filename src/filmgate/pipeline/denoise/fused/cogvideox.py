"""The transformer of CogVideoX through fused kernels: the same weights and modules, another forward pass.

Text and clip are one sequence, the text first: diffusers joins and splits them four times in each block. Both
passes of a guided step are one batch of two.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from filmgate.pipeline.denoise.attention import Attention
from filmgate.pipeline.denoise.fused.kernels import (
    Gate,
    Modulation,
    Norm,
    add_and_norm,
    norm_heads_and_rotate,
)
from filmgate.pipeline.denoise.fused.network import (
    FusedNetwork,
    Memoized,
    RotaryTables,
    States,
    by_head,
    feed_forward,
    has_plain_weights,
)

SHIFT_AND_SCALE, GATE = (0, 1), 2


class FusedBlock:
    """One CogVideoXBlock, from its first norm to the first norm of the next block."""

    def __init__(self, block: Any, attention: Attention) -> None:
        self._block = block
        self._attention = attention

    def norms(self, time: Tensor, text_tokens: int) -> tuple[Norm, Norm]:
        """Both norms of the block, with their modulations for this time step."""
        first, second = (
            Norm(one.norm.eps, affine_of(one.norm), modulation_of(one, time, text_tokens), SHIFT_AND_SCALE)
            for one in (self._block.norm1, self._block.norm2)
        )
        return first, second

    def run(
        self,
        states: States,
        norms: tuple[Norm, Norm],
        rotation: RotaryTables | None,
        following: Norm,
    ) -> States:
        """From the first norm of this block to the norm that comes after it."""
        hidden, normal = states
        first, second = (norm.modulation for norm in norms)
        assert first is not None, "both norms of a block are modulated"
        assert second is not None, "both norms of a block are modulated"
        hidden, normal = add_and_norm(hidden, self._attend(normal, rotation), Gate(first, GATE), norms[1])
        branch = feed_forward(normal, self._block.ff.net)
        return add_and_norm(hidden, branch, Gate(second, GATE), following)

    def _attend(self, normal: Tensor, rotation: RotaryTables | None) -> Tensor:
        attn = self._block.attn1
        affines = (attn.norm_q.weight, attn.norm_q.bias, attn.norm_k.weight, attn.norm_k.bias)
        query, key = attn.to_q(normal), attn.to_k(normal)
        query, key = norm_heads_and_rotate(query, key, affines, rotation, attn.norm_q.eps)
        three = [by_head(one, attn.heads) for one in (query, key, attn.to_v(normal))]
        out: Tensor = attn.to_out[0](self._attention(*three).flatten(2, 3))
        return out


class FusedCogVideoX(FusedNetwork):
    """A CogVideoXTransformer3DModel that runs fused while it is switched on."""

    def __init__(self, network: Any, attention: Attention) -> None:
        super().__init__(network, network.transformer_blocks)
        self._rotation = Memoized(make_rotation)
        self._blocks = [FusedBlock(block, attention) for block in network.transformer_blocks]

    def examples(self, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
        """A guided step. Learned positions exist for one size only."""
        config = self._network.config
        frames, *sides = shape
        step = config.patch_size_t or 1
        frames = -(-frames // step) * step
        if config.use_learned_positional_embeddings:
            sides = [config.sample_height, config.sample_width]
        noise: dict[str, Any] = self._noise(
            {
                "hidden_states": (2, frames, config.in_channels, *sides),
                "encoder_hidden_states": (2, config.max_text_seq_length, config.text_embed_dim),
            }
        )
        device = noise["hidden_states"].device
        if config.use_rotary_positional_embeddings:
            tokens = prod((frames // step, *(side // config.patch_size for side in sides)))
            angles = torch.linspace(0.0, 9.0, tokens * config.attention_head_dim // 2, device=device)
            angles = angles.view(tokens, -1).repeat_interleave(2, dim=1)
            noise["image_rotary_emb"] = (angles.cos(), angles.sin())
        if config.ofs_embed_dim:
            noise["ofs"] = torch.full((1,), 2.0, device=device)
        return [noise | {"timestep": torch.tensor([300.0, 700.0], device=device)}]

    def _kept(self) -> list[Memoized[Any]]:
        return [self._rotation]

    def predict(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        timestep_cond: Tensor | None = None,
        ofs: Tensor | None = None,
        image_rotary_emb: RotaryTables | None = None,
    ) -> Tensor:
        """As the network's own."""
        network, text_tokens = self._network, encoder_hidden_states.shape[1]
        time = self._embed_time(timestep, timestep_cond, ofs, hidden_states.dtype)
        rotation = self._rotation(*image_rotary_emb, text_tokens) if image_rotary_emb is not None else None
        hidden = network.patch_embed(encoder_hidden_states, hidden_states)
        norms = [block.norms(time, text_tokens) for block in self._blocks]
        last = Norm(network.norm_final.eps, affine_of(network.norm_final))
        following = [*(first for first, _ in norms[1:]), last]
        states = add_and_norm(hidden, None, None, norms[0][0])
        for block, own, one in zip(self._blocks, norms, following, strict=True):
            states = block.run(states, own, rotation, one)
        patches = network.proj_out(self._norm_out(states[1], time)[:, text_tokens:])
        return self._to_latents(patches, hidden_states.shape)

    def _embed_time(
        self, timestep: Tensor, condition: Tensor | None, ofs: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        network = self._network
        time: Tensor = network.time_embedding(network.time_proj(timestep).to(dtype), condition)
        if network.ofs_embedding is not None:
            time = time + network.ofs_embedding(network.ofs_proj(ofs).to(dtype))
        return functional.silu(time)  # every layer that reads it begins with this

    def _norm_out(self, normal: Tensor, time: Tensor) -> Tensor:
        """The second of two norms after the last block."""
        out = self._network.norm_out
        modulation = Modulation(None, out.linear(time).unflatten(1, (2, -1)))
        norm = Norm(out.norm.eps, affine_of(out.norm), modulation, SHIFT_AND_SCALE)
        return add_and_norm(normal, None, None, norm)[1]

    def _to_latents(self, patches: Tensor, shape: torch.Size) -> Tensor:
        config = self._network.config
        side, step = config.patch_size, config.patch_size_t or 1
        batch, frames, _, height, width = shape
        split = patches.reshape(
            batch, -(-frames // step), height // side, width // side, -1, step, side, side
        )
        return split.permute(0, 1, 5, 4, 2, 6, 3, 7).flatten(6, 7).flatten(4, 5).flatten(1, 2)


def affine_of(norm: Any) -> tuple[Tensor, Tensor] | None:
    return None if norm.weight is None else (norm.weight, norm.bias)


def modulation_of(norm: Any, time: Tensor, text_tokens: int) -> Modulation:
    """Shift, scale and gate of the clip, then those of the text, for each clip of the batch."""
    return Modulation(None, norm.linear(time).view(2 * time.shape[0], 3, -1), text_tokens)


def make_rotation(cosines: Tensor, sines: Tensor, text_tokens: int) -> RotaryTables:
    """One cosine and one sine per pair of values, after those of the text, which does not rotate."""
    cosines, sines = cosines[:, 0::2].float(), sines[:, 1::2].float()
    still = cosines.new_zeros(text_tokens, cosines.shape[1])
    return torch.cat([still + 1, cosines]), torch.cat([still, sines])


def can_fuse(network: Any) -> bool:
    """Whether this configuration has fused kernels: heads whose size is a power of two, and plain weights."""
    config = network.config
    return (
        config.activation_fn == "gelu-approximate"
        and config.attention_head_dim & (config.attention_head_dim - 1) == 0
        and has_plain_weights(network.transformer_blocks)
    )
