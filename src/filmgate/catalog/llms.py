"""Language models: the few numbers that decide memory and speed."""

from dataclasses import dataclass

BITS = {
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "mxfp4": 4.25,
    "fp4": 4.5,
    "int4": 4.5,
}


@dataclass(frozen=True, slots=True)
class Llm:
    """A decoder-only model; `latent_kv` is the cached width of latent attention, `windowed_layers` slide."""

    id: str
    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    params: int
    active_params: int
    source: str
    as_of: str
    experts: int | None = None
    experts_per_token: int | None = None
    sliding_window: int | None = None
    windowed_layers: int = 0
    latent_kv: int | None = None
    native_bytes: int | None = None
    native_precision: str = "bf16"
