"""Published and measured runs. The planner is calibrated on them and validated against them."""

from dataclasses import dataclass
from typing import Literal

from filmgate.catalog.records import Count, IsoDate, Positive, PositiveCount


@dataclass(frozen=True, slots=True)
class VideoRun:
    """Seconds for one clip.

    `kind` is "time" (prompt to frames), "decode" (decode only) or "bound" (an upper limit, not a time).
    """

    id: str
    model: str
    gpu: str
    gpus: PositiveCount
    width: PositiveCount
    height: PositiveCount
    frames: PositiveCount
    steps: Count
    seconds: Positive
    kernel: Literal["flash2", "fused"]
    mode: Literal["eager", "fused", "compiled"]
    decode_dtype: Literal["bf16", "fp32"]
    is_tiled: bool
    kind: Literal["time", "decode", "bound"]
    source: str
    as_of: IsoDate
    forwards_per_step: PositiveCount | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryRun:
    """Peak device memory of a clip. `kind` is "unknown" where dtype, offload or shape is not stated."""

    id: str
    model: str
    gpus: PositiveCount
    width: PositiveCount
    height: PositiveCount
    frames: PositiveCount
    peak_gib: Positive
    weights: Literal["bf16", "fp32"]
    decode_dtype: Literal["bf16", "fp32"]
    offload: Literal["none", "model", "cpu_text"]
    is_tiled: bool
    activation: str
    kind: Literal["memory", "unknown"]
    source: str
    as_of: IsoDate
    note: str | None = None


@dataclass(frozen=True, slots=True)
class LlmRun:
    """One figure of a language-model benchmark. With `requests`, all of them are sent at once.

    `token_ms` includes a share of the prompts of other sequences in every step, `decode_token_ms` does not.
    Runs of the kind "load" validate the simulation of first tokens under load; no constant is fitted to them.
    """

    id: str
    model: str
    gpu: str
    gpus: PositiveCount
    engine: str
    precision: str
    metric: Literal[
        "first_token_ms",
        "loaded_first_token_ms",
        "token_ms",
        "decode_token_ms",
        "latency_ms",
        "output_tokens_per_second",
        "total_tokens_per_second",
        "requests_per_second",
    ]
    value: Positive
    kv_precision: str
    kind: Literal["time", "load", "unknown"]
    source: str
    as_of: IsoDate
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    batch: PositiveCount | None = None
    requests: PositiveCount | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One stage of one model, measured on our own GPU. `peak_bytes` includes the stage's weights."""

    model: str
    gpu: str
    stage: Literal["forward", "decode"]
    width: PositiveCount
    height: PositiveCount
    frames: PositiveCount
    mode: Literal["eager", "compiled"]
    seconds: Positive
    source: str
    as_of: IsoDate
    peak_bytes: PositiveCount | None = None
    note: str | None = None

    @property
    def id(self) -> str:
        shape = f"{self.width}x{self.height}x{self.frames}"
        return f"{self.gpu.lower()}-{self.model}-{shape}-{self.stage}-{self.mode}"


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A replica of a language model that a user measured, on `devices` accelerators of an instance type.

    It makes a machine plannable that the roofline does not cover, such as one with Neuron devices.
    """

    instance: str
    model: str
    precision: str
    devices: PositiveCount
    sequences: PositiveCount
    prompt_tokens: PositiveCount
    answer_tokens: PositiveCount
    first_token_ms: Positive
    between_tokens_ms: Positive
    source: str
    as_of: IsoDate


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs in the catalog."""

    video: tuple[VideoRun, ...]
    memory: tuple[MemoryRun, ...]
    llm: tuple[LlmRun, ...]
    measured: tuple[MeasuredRun, ...]
