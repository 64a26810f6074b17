"""Language models: the architecture figures that determine memory and speed."""

from dataclasses import dataclass

from filmgate.catalog.records import Count, IsoDate, PositiveCount


@dataclass(frozen=True, slots=True)
class Llm:
    """A decoder-only model.

    `latent_kv` is the cached width per token of latent attention. `windowed_layers` attend over the last
    `sliding_window` tokens only. `native_bytes` is the size of the released checkpoint.
    """

    id: str
    name: str
    layers: PositiveCount
    hidden: PositiveCount
    heads: PositiveCount
    kv_heads: PositiveCount
    head_dim: PositiveCount
    params: PositiveCount
    active_params: PositiveCount
    source: str
    as_of: IsoDate
    experts: PositiveCount | None = None
    experts_per_token: PositiveCount | None = None
    sliding_window: PositiveCount | None = None
    windowed_layers: Count = 0
    latent_kv: PositiveCount | None = None
    native_bytes: PositiveCount | None = None
    native_precision: str = "bf16"
