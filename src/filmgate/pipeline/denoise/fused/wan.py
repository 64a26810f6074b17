"""The transformer of Wan through fused kernels: the same weights and modules, another forward pass.

A block has five passes over memory between its matrix products and attentions, each of which reads and writes
a value once. GELU runs in the epilogue of its product. Keys and values of the text, and the tables of the
rotation, are made once per clip; what does not depend on the prompt, once per step: the embeddings, and the
first block up to its attention to the text.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from filmgate.pipeline.denoise.attention import Attention, torch_attention
from filmgate.pipeline.denoise.fused.kernels import Gate, Modulation, Norm, add_and_norm, norm_and_rotate
from filmgate.pipeline.denoise.fused.network import (
    FusedNetwork,
    Memoized,
    RotaryTables,
    States,
    attend_to_clip,
    by_head,
    feed_forward,
    has_plain_weights,
)

PROMPTS = 2  # with guidance, a clip has two
TEXT_TOKENS = 512  # as in diffusers; an image's tokens come before them


class FusedBlock:
    """One WanTransformerBlock, from its first norm to the first norm of the next block."""

    def __init__(self, block: Any, attention: Attention) -> None:
        self._block = block
        self._attention = attention
        self.text = Memoized(self._text_keys_and_values, PROMPTS)

    def first_norm(self, time: Tensor) -> Norm:
        return Norm(self._block.norm1.eps, None, self._modulation(time), (0, 1))

    def attend_to_clip(self, states: States, time: Tensor, rotation: RotaryTables) -> States:
        """The part before attention to the text: from the first norm to the second."""
        hidden, normal = states
        norm = self._block.norm2
        branch = attend_to_clip(self._block.attn1, normal, rotation, self._attention)
        second = Norm(norm.eps, (norm.weight, norm.bias))
        return add_and_norm(hidden, branch, Gate(self._modulation(time), 2), second)

    def attend_to_text(self, states: States, text: Tensor, time: Tensor, following: Norm) -> States:
        """The rest, up to the norm that comes after this block."""
        hidden, normal = states
        block, modulation = self._block, self._modulation(time)
        branch = self._attend_to_text(normal, text)
        third = Norm(block.norm3.eps, None, modulation, (3, 4))
        hidden, normal = add_and_norm(hidden, branch, None, third)
        branch = feed_forward(normal, block.ffn.net)
        return add_and_norm(hidden, branch, Gate(modulation, 5), following)

    def _modulation(self, time: Tensor) -> Modulation:
        return Modulation(self._block.scale_shift_table[0], time)

    def _attend_to_text(self, normal: Tensor, text: Tensor) -> Tensor:
        """Few keys: torch's attention is faster than flash-attn-4 there."""
        attn = self._block.attn2
        query, _ = norm_and_rotate(attn.to_q(normal), None, (attn.norm_q.weight,) * 2, None, attn.norm_q.eps)
        query = by_head(query, attn.heads)
        attended, *more = (torch_attention(query, key, value) for key, value in self.text(text))
        for one in more:
            attended = attended + one
        out: Tensor = attn.to_out[0](attended.flatten(2, 3))
        return out

    def _text_keys_and_values(self, text: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of the prompt and, where the model reads one, of the image."""
        attn = self._block.attn2
        image_tokens = 0 if attn.add_k_proj is None else text.shape[1] - TEXT_TOKENS
        image, text = text[:, :image_tokens], text[:, image_tokens:]
        pairs = [(attn.norm_k(attn.to_k(text)), attn.to_v(text))]
        if attn.add_k_proj is not None:
            pairs.append((attn.norm_added_k(attn.add_k_proj(image)), attn.add_v_proj(image)))
        return [(by_head(key, attn.heads), by_head(value, attn.heads)) for key, value in pairs]


class FusedWan(FusedNetwork):
    """A WanTransformer3DModel that runs fused while it is switched on."""

    def __init__(self, network: Any, attention: Attention) -> None:
        super().__init__(network, network.blocks)
        self._time = Memoized(self._embed_time)
        self._text = Memoized(self._embed_text, PROMPTS)
        self._start = Memoized(self._run_start, is_for_pair=True)
        self._rotation = Memoized(self._make_rotation)
        self._blocks = [FusedBlock(block, attention) for block in network.blocks]

    def examples(self, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
        """Inputs of a short pass with noise: one timestep for the clip, and one for each token."""
        config = self._network.config
        sizes: dict[str, tuple[int, ...]] = {
            "hidden_states": (1, config.in_channels, *shape),
            "encoder_hidden_states": (1, TEXT_TOKENS, config.text_dim),
        }
        if config.image_dim is not None:
            sizes["encoder_hidden_states_image"] = (1, 257, config.image_dim)
        noise = self._noise(sizes)
        tokens = prod(size // step for size, step in zip(shape, config.patch_size, strict=True))
        timesteps = torch.linspace(100.0, 900.0, tokens, device=noise["hidden_states"].device)
        return [noise | {"timestep": time} for time in (timesteps[:1], timesteps[None])]

    def _kept(self) -> list[Memoized[Any]]:
        kept: list[Memoized[Any]] = [self._time, self._text, self._start, self._rotation]
        return [*kept, *(block.text for block in self._blocks)]

    def predict(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_image: Tensor | None = None,
    ) -> Tensor:
        """As the network's own. The time step is one number, or one per token."""
        network = self._network
        rotation = self._rotation(*hidden_states.shape[2:])
        text = self._text(encoder_hidden_states, encoder_hidden_states_image)
        time, last_time = self._time(timestep, encoder_hidden_states.dtype)
        last = Norm(network.norm_out.eps, None, Modulation(network.scale_shift_table[0], last_time), (0, 1))
        norms = [*(block.first_norm(time) for block in self._blocks), last]
        states = self._start(hidden_states, time)
        for block, following in zip(self._blocks, norms[1:], strict=True):
            if block is not self._blocks[0]:
                states = block.attend_to_clip(states, time, rotation)
            states = block.attend_to_text(states, text, time, following)
        return self._to_latents(network.proj_out(states[1]), hidden_states.shape)

    def _run_start(self, latents: Tensor, time: Tensor) -> States:
        """Up to the first attention to the text."""
        first = self._blocks[0]
        states = add_and_norm(self._embed_patches(latents), None, None, first.first_norm(time))
        return first.attend_to_clip(states, time, self._rotation(*latents.shape[2:]))

    def _embed_text(self, text: Tensor, image: Tensor | None) -> Tensor:
        embedder = self._network.condition_embedder
        embedded: Tensor = embedder.text_embedder(text)
        return embedded if image is None else torch.cat([embedder.image_embedder(image), embedded], dim=1)

    def _embed_time(self, timestep: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The vectors of the blocks, [timesteps, 6, width], and of the last norm, [timesteps, 2, width]."""
        embedder = self._network.condition_embedder
        waves = embedder.timesteps_proj(timestep.flatten())
        time = embedder.time_embedder(waves.to(next(embedder.time_embedder.parameters()).dtype)).to(dtype)
        vectors = embedder.time_proj(embedder.act_fn(time)).unflatten(1, (6, -1))
        return vectors.contiguous(), time.unsqueeze(1).expand(-1, 2, -1).contiguous()

    def _embed_patches(self, latents: Tensor) -> Tensor:
        """[batch, tokens, width]: the convolution as a product, because its windows do not overlap."""
        conv = self._network.patch_embedding
        steps = conv.kernel_size
        split = [
            part for size, step in zip(latents.shape[2:], steps, strict=True) for part in (size // step, step)
        ]
        windows = latents.reshape(*latents.shape[:2], *split).permute(0, 2, 4, 6, 1, 3, 5, 7)
        return functional.linear(windows.flatten(4).flatten(1, 3), conv.weight.flatten(1), conv.bias)

    def _to_latents(self, patches: Tensor, shape: torch.Size) -> Tensor:
        steps = self._network.config.patch_size
        counts = [size // step for size, step in zip(shape[2:], steps, strict=True)]
        split = patches.reshape(shape[0], *counts, *steps, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return split.flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def _make_rotation(self, *shape: int) -> RotaryTables:
        rope = self._network.rope
        return compact_tables(*rope(rope.freqs_cos.new_empty(1, 1, *shape)))


def can_fuse(network: Any) -> bool:
    """Whether this configuration has fused kernels: norms where Wan has them, and plain weights."""
    config = network.config
    return (
        config.qk_norm is not None
        and bool(config.cross_attn_norm)
        and config.attention_head_dim % 2 == 0
        and has_plain_weights(network.blocks)
    )


def compact_tables(cosines: Tensor, sines: Tensor) -> RotaryTables:
    """One cosine and one sine per pair of values; diffusers repeats each for both values of the pair."""
    return cosines[0, :, 0, 0::2].contiguous(), sines[0, :, 0, 1::2].contiguous()
