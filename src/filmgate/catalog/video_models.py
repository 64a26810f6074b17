"""Video models: the size of each component, and polynomials for its work at any clip shape."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from filmgate.catalog.records import Amount, Count, IsoDate, Positive, PositiveCount

Pair = tuple[Amount, Amount]


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """A prompt encoder; it runs once per clip on a fixed number of tokens."""

    id: str
    params: PositiveCount
    tokens: PositiveCount
    source: str
    as_of: IsoDate


@dataclass(frozen=True, slots=True)
class Denoiser:
    """The denoiser and the work of one forward pass over N video tokens.

    Pairs are (constant, per token), except `attention_flops`: (per token, per token squared).
    """

    class_name: str
    params: PositiveCount
    copies: PositiveCount
    layers: Count
    width: PositiveCount
    head_dim: PositiveCount
    linear_flops: Pair
    attention_flops: Pair
    activation_bytes: Pair
    traffic_bytes: Pair
    traffic_source: str
    extra_params: Count = 0
    mask_bytes_per_token_pair: Amount = 0.0


@dataclass(frozen=True, slots=True)
class TiledDecode:
    """Decoding in overlapping tiles: more arithmetic, much less memory."""

    work_factor: Positive
    fixed_bytes: Amount
    bytes_per_pixel: Amount


@dataclass(frozen=True, slots=True)
class FastDecode:
    """Filmgate's own kernels: their time as a share of the time of the VAE's layers, and where measured."""

    time_share: Positive
    compute_capabilities: tuple[str, ...]
    source: str
    as_of: IsoDate


@dataclass(frozen=True, slots=True)
class Vae:
    """The decoder and its work.

    `flops_*_latent` are per latent pixel of the first and of each further latent frame. Peaks are (bytes per
    pixel, bytes per pixel and frame). Traffic and `norm_values_per_pixel` are per pixel and frame: the latter
    counts values that a GroupNorm averages with 32 thread blocks on any GPU. `match` holds the settings that
    distinguish VAEs of one class.
    """

    id: str
    class_name: str
    params: PositiveCount
    latent_channels: PositiveCount
    time_ratio: PositiveCount
    space_ratio: PositiveCount
    flops_first_latent: Amount
    flops_next_latent: Amount
    flops_attention_per_area_pair: Amount
    peak_bf16: Pair
    peak_fp32: Pair
    traffic_bytes_per_pixel: Amount
    traffic_source: str
    source: str
    as_of: IsoDate
    mask_bytes_per_pixel_pair: Amount = 0.0
    norm_values_per_pixel: Amount = 0.0
    tiled: TiledDecode | None = None
    fast: FastDecode | None = None
    match: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The clip that the released pipeline renders by default."""

    width: PositiveCount
    height: PositiveCount
    frames: PositiveCount
    fps: PositiveCount
    steps: PositiveCount
    forwards_per_step: PositiveCount


@dataclass(frozen=True, slots=True)
class VideoModel:
    """A text-to-video or image-to-video model with its components.

    Sides are multiples of `size_multiple`; frame counts are a multiple of `frame_step` plus one.
    """

    id: str
    name: str
    denoiser: Denoiser
    vae: Vae
    text_encoders: tuple[TextEncoder, ...]
    patch: tuple[PositiveCount, PositiveCount, PositiveCount]
    size_multiple: PositiveCount
    frame_step: PositiveCount
    defaults: Defaults
    is_guidance_batched: bool
    is_fixed_shape: bool
    source: str
    as_of: IsoDate
    repo: str | None = None
    pipeline: str | None = None
    note: str | None = None
