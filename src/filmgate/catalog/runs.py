"""Runs somebody published or we measured: what the planner is calibrated on and judged by."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class VideoRun:
    """Seconds for one clip. `kind`: time is prompt to frames, decode that alone, bound a mere limit."""

    id: str
    model: str
    gpu: str
    gpus: int
    width: int
    height: int
    frames: int
    steps: int
    seconds: float
    kernel: Literal["flash2", "fused"]
    mode: Literal["eager", "fused", "compiled"]
    decode_dtype: Literal["bf16", "fp32"]
    is_tiled: bool
    kind: Literal["time", "decode", "bound"]
    source: str
    as_of: str
    forwards_per_step: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """Peak device memory of a clip. `kind` unknown: dtype, offload or shape is not stated."""

    id: str
    model: str
    gpus: int
    width: int
    height: int
    frames: int
    peak_gib: float
    weights: Literal["bf16", "fp32"]
    decode_dtype: Literal["bf16", "fp32"]
    offload: Literal["none", "model", "cpu_text"]
    is_tiled: bool
    activation: str
    kind: Literal["memory", "unknown"]
    source: str
    as_of: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class LlmRun:
    """One figure of one language-model benchmark; `requests` were sent all at once where it is set."""

    id: str
    model: str
    gpu: str
    gpus: int
    engine: str
    precision: str
    metric: str
    value: float
    kv: str
    kind: Literal["time", "unknown"]
    source: str
    as_of: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    batch: int | None = None
    requests: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One stage of one model timed on a GPU of ours; `peak_bytes` includes the stage's weights."""

    model: str
    gpu: str
    stage: Literal["forward", "decode"]
    width: int
    height: int
    frames: int
    mode: Literal["eager", "compiled"]
    seconds: float
    source: str
    as_of: str
    peak_bytes: int | None = None
    weight_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Runs:
    """Everything the planner can be held against."""

    video: tuple[VideoRun, ...]
    memory: tuple[MemoryRun, ...]
    llm: tuple[LlmRun, ...]
    measured: tuple[MeasuredRun, ...]
