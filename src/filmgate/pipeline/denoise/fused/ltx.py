"""The transformer of LTX-Video through fused kernels: the same weights and modules, another forward pass.

Its norms are RMS norms, attention to the text reads the hidden states without a norm, and each head has
its own rotation frequencies. Both passes of a guided step are one batch of two.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from filmgate.pipeline.denoise.attention import Attention
from filmgate.pipeline.denoise.fused.kernels import (
    NO_NORM,
    Gate,
    Kind,
    Modulation,
    Norm,
    add_and_norm,
    norm_and_rotate,
)
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

TEXT_TOKENS = 128  # of the pipeline
MASKED = -10000.0  # added to the scores of padding, as diffusers does


class FusedBlock:
    """One LTXVideoTransformerBlock, from its first norm to the first norm of the next block."""

    def __init__(self, block: Any, attention: Attention) -> None:
        self._block = block
        self._attention = attention
        self.text = Memoized(self._text_keys_and_values)

    def first_norm(self, time: Tensor) -> Norm:
        return self._norm(self._block.norm1, time, (0, 1))

    def run(
        self,
        states: States,
        text: tuple[Tensor, Tensor | None],
        time: Tensor,
        rotation: RotaryTables,
        following: Norm,
    ) -> States:
        """From the first norm of this block to the norm that comes after it."""
        hidden, normal = states
        block, modulation = self._block, Modulation(self._block.scale_shift_table, time)
        branch = attend_to_clip(self._block.attn1, normal, rotation, self._attention)
        hidden, _ = add_and_norm(hidden, branch, Gate(modulation, 2), NO_NORM)
        branch = self._attend_to_text(hidden, *text)
        hidden, normal = add_and_norm(hidden, branch, None, self._norm(block.norm2, time, (3, 4)))
        return add_and_norm(hidden, feed_forward(normal, block.ff.net), Gate(modulation, 5), following)

    def _norm(self, norm: Any, time: Tensor, shift_and_scale: tuple[int, int]) -> Norm:
        modulation = Modulation(self._block.scale_shift_table, time)
        return Norm(norm.eps, None, modulation, shift_and_scale, Kind.RMS)

    def _attend_to_text(self, hidden: Tensor, text: Tensor, bias: Tensor | None) -> Tensor:
        """torch's attention: padding is masked by a bias, which flash-attn-4 does not take."""
        attn = self._block.attn2
        query, _ = norm_and_rotate(attn.to_q(hidden), None, (attn.norm_q.weight,) * 2, None, attn.norm_q.eps)
        query = by_head(query, attn.heads).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(query, *self.text(text), attn_mask=bias)
        out: Tensor = attn.to_out[0](attended.transpose(1, 2).flatten(2, 3))
        return out

    def _text_keys_and_values(self, text: Tensor) -> tuple[Tensor, Tensor]:
        attn = self._block.attn2
        key, value = attn.norm_k(attn.to_k(text)), attn.to_v(text)
        return by_head(key, attn.heads).transpose(1, 2), by_head(value, attn.heads).transpose(1, 2)


class FusedLtx(FusedNetwork):
    """An LTXVideoTransformer3DModel that runs fused while it is switched on."""

    def __init__(self, network: Any, attention: Attention) -> None:
        super().__init__(network, network.transformer_blocks)
        self._text = Memoized(self._embed_text)
        self._bias = Memoized(make_bias)
        self._rotation = Memoized(self._make_rotation)
        self._blocks = [FusedBlock(block, attention) for block in network.transformer_blocks]

    def examples(self, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
        """A guided step, whose second prompt is short: one timestep for the clip, and one for each token."""
        config, tokens = self._network.config, prod(shape)
        noise = self._noise(
            {
                "hidden_states": (2, tokens, config.in_channels),
                "encoder_hidden_states": (2, TEXT_TOKENS, config.caption_channels),
            }
        )
        device = noise["hidden_states"].device
        mask = torch.ones(2, TEXT_TOKENS, device=device)
        mask[1, TEXT_TOKENS // 8 :] = 0
        frames, height, width = shape
        others = {
            "encoder_attention_mask": mask,
            "num_frames": frames,
            "height": height,
            "width": width,
            "rope_interpolation_scale": (8 / 25, 32, 32),
        }
        timesteps = torch.linspace(100.0, 900.0, 2 * tokens, device=device).view(2, tokens)
        return [noise | others | {"timestep": time} for time in (timesteps[:, 0], timesteps)]

    def _kept(self) -> list[Memoized[Any]]:
        kept: list[Memoized[Any]] = [self._text, self._bias, self._rotation]
        return [*kept, *(block.text for block in self._blocks)]

    def predict(  # noqa: PLR0913, PLR0917 - the arguments of diffusers
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        timestep: Tensor,
        encoder_attention_mask: Tensor | None,
        num_frames: int | None = None,
        height: int | None = None,
        width: int | None = None,
        rope_interpolation_scale: tuple[float, float, float] | Tensor | None = None,
        video_coords: Tensor | None = None,
    ) -> Tensor:
        """As the network's own. The time step is one number for each clip of the batch, or one per token."""
        network = self._network
        rotation = self._rotation(
            num_frames, height, width, rope_interpolation_scale, video_coords, hidden_states.device
        )
        text = self._text(encoder_hidden_states), self._bias(encoder_attention_mask, hidden_states.dtype)
        hidden = network.proj_in(hidden_states)
        vectors, embedded = network.time_embed(
            timestep.flatten(), batch_size=hidden.shape[0], hidden_dtype=hidden.dtype
        )
        time = vectors.unflatten(1, (6, -1))
        last_time = embedded.unsqueeze(1).expand(-1, 2, -1).contiguous()
        last = Norm(network.norm_out.eps, None, Modulation(network.scale_shift_table, last_time), (0, 1))
        norms = [*(block.first_norm(time) for block in self._blocks), last]
        states = add_and_norm(hidden, None, None, norms[0])
        for block, following in zip(self._blocks, norms[1:], strict=True):
            states = block.run(states, text, time, rotation, following)
        output: Tensor = network.proj_out(states[1])
        return output

    def _embed_text(self, text: Tensor) -> Tensor:
        embedded: Tensor = self._network.caption_projection(text)
        return embedded

    def _make_rotation(self, *shape_and_scale: Any) -> RotaryTables:
        """[tokens, width / 2]: the clips of a batch have the same size, and so the same positions."""
        *shape, coordinates, device = shape_and_scale
        if coordinates is not None:
            coordinates = coordinates[:1]
        cosines, sines = self._network.rope(torch.empty(1, device=device), *shape, coordinates)
        return cosines[0, :, 0::2].contiguous(), sines[0, :, 1::2].contiguous()


def make_bias(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores of attention, for all heads and queries."""
    return None if mask is None else ((1 - mask.to(dtype)) * MASKED)[:, None, None]


def can_fuse(network: Any) -> bool:
    """Whether this configuration has fused kernels: norms without weights, and plain linear layers."""
    config = network.config
    return (
        not config.norm_elementwise_affine
        and config.activation_fn == "gelu-approximate"
        and config.attention_head_dim % 2 == 0
        and has_plain_weights(network.transformer_blocks)
    )
