"""What stands between the matrix products of a transformer block, in Triton: one pass over memory each.

`add_and_norm` adds a branch to the residual stream, normalises the sum and modulates it. `norm_and_rotate`
normalises queries and keys over all heads and rotates them, in the layout that attention reads. Both compute
in float32 and round once, at the end. Imported only where a GPU is present.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

VALUES_PER_WARP = 512
MAX_WARPS = 16
ROWS = 4  # per program, which reads the modulation once for all of them


class Modulation(NamedTuple):
    """Vectors that depend on the time step: `table` of a block plus `time` of the pass.

    `table` is [vectors, width] in float32; `time` is [moments, vectors, width]. A moment applies to a whole
    clip, or to one token.
    """

    table: Tensor
    time: Tensor


class Gate(NamedTuple):
    """What the branch is multiplied by: one vector of a modulation."""

    modulation: Modulation
    vector: int


class Norm(NamedTuple):
    """A layer norm: its own weight and bias, or the shift and scale of a modulation, or neither."""

    epsilon: float
    affine: tuple[Tensor, Tensor] | None = None
    modulation: Modulation | None = None
    shift_and_scale: tuple[int, int] = (-1, -1)


@triton.jit
def _vector(table, time, moment, index: tl.constexpr, columns, lane, inside):
    at = index * columns + lane
    learned = tl.load(table + at, mask=inside, other=0.0).to(tl.float32)
    return learned + tl.load(time + moment + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _add_and_norm(
    stream,
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
    rows_per_moment,
    epsilon,
    gate_vectors: tl.constexpr,
    gate: tl.constexpr,
    vectors: tl.constexpr,
    shift: tl.constexpr,
    scale: tl.constexpr,
    has_branch: tl.constexpr,
    has_affine: tl.constexpr,
    rows: tl.constexpr,
    lanes: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * rows
    lane = tl.arange(0, lanes)
    inside = lane < columns
    moment = (first // rows_per_moment) * columns
    factor, lift, drop = 1.0, 1.0, 0.0
    if gate >= 0:
        factor = _vector(gate_table, gate_time, moment * gate_vectors, gate, columns, lane, inside)
    if scale >= 0:
        lift = 1.0 + _vector(table, time, moment * vectors, scale, columns, lane, inside)
        drop = _vector(table, time, moment * vectors, shift, columns, lane, inside)
    if has_affine:
        lift = tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
        drop = tl.load(bias + lane, mask=inside, other=0.0).to(tl.float32)
    for row in range(rows):
        at = (first + row) * columns + lane
        value = tl.load(stream + at, mask=inside, other=0.0).to(tl.float32)
        if has_branch:
            value += tl.load(branch + at, mask=inside, other=0.0).to(tl.float32) * factor
            tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
        mean = tl.sum(value, 0) / columns
        centred = tl.where(inside, value - mean, 0.0)
        root = tl.rsqrt(tl.sum(centred * centred, 0) / columns + epsilon)
        normal = centred * root * lift + drop
        tl.store(out + at, normal.to(out.dtype.element_ty), mask=inside)


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


def add_and_norm(
    stream: Tensor, branch: Tensor | None, gate: Gate | None, norm: Norm
) -> tuple[Tensor, Tensor]:
    """(stream + branch * gate, the norm of that), both in the dtype of the stream: [batch, tokens, width]."""
    columns = stream.shape[-1]
    count = stream.numel() // columns
    total = stream if branch is None else torch.empty_like(stream)
    out = torch.empty_like(stream)
    used = [each for each in (gate.modulation if gate else None, norm.modulation) if each is not None]
    per_moment = count // used[0].time.shape[0] if used else count
    rows = ROWS if count % ROWS == 0 and per_moment % ROWS == 0 else 1
    nothing = Modulation(stream, stream)
    gated, modulated = gate.modulation if gate else nothing, norm.modulation or nothing
    shift, scale = norm.shift_and_scale
    _launch(
        _add_and_norm, count // rows, columns,
        stream, stream if branch is None else branch, *gated, *modulated, *(norm.affine or nothing),
        total, out, columns, per_moment, norm.epsilon,
        gate_vectors=gated.table.shape[-2], gate=gate.vector if gate else -1,
        vectors=modulated.table.shape[-2], shift=shift, scale=scale,
        has_branch=branch is not None, has_affine=norm.affine is not None, rows=rows,
    )  # fmt: skip
    return total, out


def norm_and_rotate(
    query: Tensor,
    key: Tensor | None,
    weights: tuple[Tensor, Tensor],
    rotation: tuple[Tensor, Tensor] | None,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Queries and keys, [batch, tokens, width], normalised over all heads and rotated by position.

    `rotation` is the cosine and the sine of each pair of values, [tokens, head size / 2] in float32. Without
    keys, both results are the queries.
    """
    tokens, columns = query.shape[1:]
    query_out = torch.empty_like(query)
    key_out = query_out if key is None else torch.empty_like(key)
    cosines, sines = rotation or (query, query)
    _launch(
        _norm_and_rotate, query.numel() // columns, columns,
        query, query if key is None else key, *weights, cosines, sines, query_out, key_out,
        tokens, columns, epsilon,
        has_key=key is not None, has_rotation=rotation is not None,
        pairs=cosines.shape[-1] if rotation else 1,
    )  # fmt: skip
    return query_out, key_out


def _launch(kernel: Any, programs: int, columns: int, *arguments: Any, **constants: Any) -> None:
    lanes = triton.next_power_of_2(columns)
    warps = min(max(lanes // VALUES_PER_WARP, 1), MAX_WARPS)
    kernel[(programs,)](*arguments, **constants, lanes=lanes, num_warps=warps)
