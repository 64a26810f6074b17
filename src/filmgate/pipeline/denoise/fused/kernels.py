"""What stands between the matrix products of a transformer block, in Triton: one pass over memory each.

`add_and_norm` adds a branch to the hidden states, normalises the sum and modulates it. `norm_and_rotate`
normalises queries and keys over all heads, `norm_heads_and_rotate` each head by itself; both rotate them, in
the layout that attention reads. All compute in float32 and round once, at the end. Imported only where a GPU
is present.
"""

from enum import IntEnum
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from filmgate.pipeline.launch import launch

# The fastest of those measured on one H200 at a width of 1,536: values that a warp holds, rows per program.
HIDDEN_VALUES_PER_WARP = 1024
HEAD_VALUES_PER_WARP = 512
MAX_WARPS = 16
ROWS = (4, 2, 1)  # a program reads the modulation once for all its rows


class Modulation(NamedTuple):
    """Vectors that depend on the time step: `table` of a block, if it has one, plus `time` of the pass.

    `table` is [vectors, width]; `time` is [timesteps, vectors, width]. A timestep applies to a whole clip, or
    to one token. If the hidden states begin with the text, timesteps come in pairs, and the second of a pair
    applies to the first `text_tokens` tokens.
    """

    table: Tensor | None
    time: Tensor
    text_tokens: int = 0

    def rows_per_timestep(self, rows: int) -> int:
        """Rows of the hidden states that share a timestep or a pair of them."""
        timesteps = self.time.shape[0]
        return rows // (timesteps // 2 if self.text_tokens else timesteps)


class Gate(NamedTuple):
    """What the branch is multiplied by: one vector of a modulation."""

    modulation: Modulation
    vector: int


class Kind(IntEnum):
    """Which norm."""

    NONE = 0
    LAYER = 1
    RMS = 2


class Norm(NamedTuple):
    """A norm over the width: its own weight and bias, then the shift and scale of a modulation, if any."""

    epsilon: float
    affine: tuple[Tensor, Tensor] | None = None
    modulation: Modulation | None = None
    shift_and_scale: tuple[int, int] = (-1, -1)
    kind: Kind = Kind.LAYER


NO_NORM = Norm(0.0, kind=Kind.NONE)


@triton.jit
def _vector(table, time, timestep, index: tl.constexpr, columns, lane, inside, has_table: tl.constexpr):
    at = index * columns + lane
    value = tl.load(time + timestep + at, mask=inside, other=0.0).to(tl.float32)
    if has_table:
        value += tl.load(table + at, mask=inside, other=0.0).to(tl.float32)
    return value


@triton.jit
def _add_and_norm(
    hidden,
    branch,
    gate_table,
    gate_time,
    table,
    time,
    weight,
    bias,
    total,
    out,
    columns,
    rows_per_timestep,
    text_tokens,
    epsilon,
    gate_vectors: tl.constexpr,
    gate: tl.constexpr,
    vectors: tl.constexpr,
    shift: tl.constexpr,
    scale: tl.constexpr,
    kind: tl.constexpr,
    has_branch: tl.constexpr,
    has_affine: tl.constexpr,
    has_table: tl.constexpr,
    has_text: tl.constexpr,
    rows: tl.constexpr,
    lanes: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * rows
    lane = tl.arange(0, lanes)
    inside = lane < columns
    timestep = first // rows_per_timestep
    if has_text:
        timestep = timestep * 2 + (first % rows_per_timestep < text_tokens).to(tl.int64)
    timestep = timestep * columns
    factor, gamma, beta = 1.0, 1.0, 0.0
    if gate >= 0:
        vector = timestep * gate_vectors
        factor = _vector(gate_table, gate_time, vector, gate, columns, lane, inside, has_table)
    if has_affine:
        gamma = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
        beta = tl.load(bias + lane, mask=inside, other=0.0).to(tl.float32)
    if scale >= 0:
        vector = timestep * vectors
        one_plus_scale = 1.0 + _vector(table, time, vector, scale, columns, lane, inside, has_table)
        beta = beta * one_plus_scale + _vector(table, time, vector, shift, columns, lane, inside, has_table)
        gamma = gamma * one_plus_scale
    for row in range(rows):
        at = (first + row) * columns + lane
        value = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32)
        if has_branch:
            value += tl.load(branch + at, mask=inside, other=0.0).to(tl.float32) * factor
            tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
        if kind == 1:
            value = tl.where(inside, value - tl.sum(value, 0) / columns, 0.0)
        if kind > 0:
            root = tl.rsqrt(tl.sum(value * value, 0) / columns + epsilon)
            tl.store(out + at, (value * root * gamma + beta).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_row(
    source, weight, out, cosine, sine, columns, epsilon, has_rotation: tl.constexpr, lanes: tl.constexpr
):
    lane = tl.arange(0, lanes)
    inside = lane < columns
    value = tl.load(source + lane, mask=inside, other=0.0).to(tl.float32)
    root = tl.rsqrt(tl.sum(value * value, 0) / columns + epsilon)
    value = value * root * tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    if has_rotation:
        even, odd = tl.split(tl.reshape(value, (lanes // 2, 2)))
        value = tl.reshape(tl.join(even * cosine - odd * sine, even * sine + odd * cosine), (lanes,))
    tl.store(out + lane, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_and_rotate(
    query,
    key,
    query_weight,
    key_weight,
    cosines,
    sines,
    query_out,
    key_out,
    tokens,
    columns,
    epsilon,
    has_key: tl.constexpr,
    has_rotation: tl.constexpr,
    pairs: tl.constexpr,
    lanes: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cosine, sine = 1.0, 0.0
    if has_rotation:
        pair = tl.arange(0, lanes // 2)
        at = (row % tokens) * pairs + pair % pairs
        cosine = tl.load(cosines + at, mask=pair * 2 < columns, other=0.0)
        sine = tl.load(sines + at, mask=pair * 2 < columns, other=0.0)
    at = row * columns
    _rotate_row(query + at, query_weight, query_out + at, cosine, sine, columns, epsilon, has_rotation, lanes)
    if has_key:
        _rotate_row(key + at, key_weight, key_out + at, cosine, sine, columns, epsilon, has_rotation, lanes)


@triton.jit
def _rotate_heads(
    source,
    weight,
    bias,
    out,
    cosine,
    sine,
    at,
    inside,
    lane,
    epsilon,
    has_rotation: tl.constexpr,
    size: tl.constexpr,
    lanes: tl.constexpr,
):
    value = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    value = value - tl.sum(value, 1)[:, None] / size
    root = tl.rsqrt(tl.sum(value * value, 1) / size + epsilon)
    gamma, beta = tl.load(weight + lane).to(tl.float32), tl.load(bias + lane).to(tl.float32)
    value = value * root[:, None] * gamma[None, :] + beta[None, :]
    if has_rotation:
        even, odd = tl.split(tl.reshape(value, (lanes, size // 2, 2)))
        pairs = tl.join(even * cosine - odd * sine, even * sine + odd * cosine)
        value = tl.reshape(pairs, (lanes, size))
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_heads_and_rotate(
    query,
    key,
    query_weight,
    query_bias,
    key_weight,
    key_bias,
    cosines,
    sines,
    query_out,
    key_out,
    tokens,
    epsilon,
    heads: tl.constexpr,
    has_rotation: tl.constexpr,
    size: tl.constexpr,
    lanes: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head, lane = tl.arange(0, lanes)[:, None], tl.arange(0, size)
    inside = head < heads
    at = (row * heads + head) * size + lane[None, :]
    cosine, sine = 1.0, 0.0
    if has_rotation:
        pair = (row % tokens) * (size // 2) + tl.arange(0, size // 2)
        cosine, sine = tl.load(cosines + pair)[None, :], tl.load(sines + pair)[None, :]
    _rotate_heads(
        query, query_weight, query_bias, query_out, cosine, sine, at, inside, lane, epsilon,
        has_rotation, size, lanes,
    )  # fmt: skip
    _rotate_heads(
        key, key_weight, key_bias, key_out, cosine, sine, at, inside, lane, epsilon,
        has_rotation, size, lanes,
    )  # fmt: skip


def add_and_norm(
    hidden: Tensor, branch: Tensor | None, gate: Gate | None, norm: Norm
) -> tuple[Tensor, Tensor]:
    """(hidden + branch * gate, the norm of that), both in the dtype of `hidden`: [batch, tokens, width].

    A gate and a modulated norm must have the same timesteps. Without a norm, both results are the sum.
    """
    columns = hidden.shape[-1]
    count = hidden.numel() // columns
    total = hidden if branch is None else torch.empty_like(hidden)
    out = total if norm.kind is Kind.NONE else torch.empty_like(hidden)
    used = [each for each in (gate.modulation if gate else None, norm.modulation) if each is not None]
    first = used[0] if used else Modulation(None, hidden[:1, :1])
    per_timestep = first.rows_per_timestep(count) if used else count
    rows = next(rows for rows in ROWS if not any(n % rows for n in (count, per_timestep, first.text_tokens)))
    gated, modulated = gate.modulation if gate else first, norm.modulation or first
    shift, scale = norm.shift_and_scale
    _launch_wide(
        _add_and_norm, count // rows, columns, HIDDEN_VALUES_PER_WARP,
        hidden, hidden if branch is None else branch, *_tensors(gated), *_tensors(modulated),
        *(norm.affine or (hidden, hidden)), total, out,
        columns, per_timestep, first.text_tokens, norm.epsilon,
        gate_vectors=gated.time.shape[-2], gate=gate.vector if gate else -1,
        vectors=modulated.time.shape[-2], shift=shift, scale=scale, kind=int(norm.kind),
        has_branch=branch is not None, has_affine=norm.affine is not None,
        has_table=first.table is not None, has_text=first.text_tokens > 0, rows=rows,
    )  # fmt: skip
    return total, out


def _tensors(modulation: Modulation) -> tuple[Tensor, Tensor]:
    """Table and time; a kernel does not read a table that is missing."""
    return (modulation.time if modulation.table is None else modulation.table), modulation.time


def norm_and_rotate(
    query: Tensor,
    key: Tensor | None,
    weights: tuple[Tensor, Tensor],
    rotation: tuple[Tensor, Tensor] | None,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Queries and keys, [batch, tokens, width], normalised over all heads and rotated by position.

    `rotation` is the cosine and the sine of each pair of values in float32: [tokens, head size / 2], or
    [tokens, width / 2] if the heads rotate differently. Without keys, both results are the queries.
    """
    tokens, columns = query.shape[1:]
    query_out = torch.empty_like(query)
    key_out = query_out if key is None else torch.empty_like(key)
    cosines, sines = rotation or (query, query)
    _launch_wide(
        _norm_and_rotate, query.numel() // columns, columns, HEAD_VALUES_PER_WARP,
        query, query if key is None else key, *weights, cosines, sines, query_out, key_out,
        tokens, columns, epsilon,
        has_key=key is not None, has_rotation=rotation is not None,
        pairs=cosines.shape[-1] if rotation else 1,
    )  # fmt: skip
    return query_out, key_out


def norm_heads_and_rotate(
    query: Tensor,
    key: Tensor,
    affines: tuple[Tensor, Tensor, Tensor, Tensor],
    rotation: tuple[Tensor, Tensor] | None,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Queries and keys, [batch, tokens, width], with a layer norm of each head, and rotated by position.

    `affines` are weight and bias of the queries' norm, then of the keys', [head size] each, a power of two.
    `rotation` is the cosine and the sine of each pair of values, [tokens, head size / 2] in float32.
    """
    tokens, columns = query.shape[1:]
    size = affines[0].shape[0]
    query_out, key_out = torch.empty_like(query), torch.empty_like(key)
    lanes = triton.next_power_of_2(columns // size)
    launch(
        _norm_heads_and_rotate, query.numel() // columns,
        query, key, *affines, *(rotation or (query, query)), query_out, key_out, tokens, epsilon,
        heads=columns // size, has_rotation=rotation is not None, size=size, lanes=lanes,
        num_warps=_warps(lanes * size, HEAD_VALUES_PER_WARP),
    )  # fmt: skip
    return query_out, key_out


def _launch_wide(
    kernel: Any, programs: int, columns: int, values_per_warp: int, *arguments: Any, **constants: Any
) -> None:
    lanes = triton.next_power_of_2(columns)
    warps = _warps(lanes, values_per_warp)
    launch(kernel, programs, *arguments, **constants, lanes=lanes, num_warps=warps)


def _warps(values: int, values_per_warp: int) -> int:
    return min(max(values // values_per_warp, 1), MAX_WARPS)
