"""Video models: what each part weighs, and polynomials for the work it does at any shape."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """A prompt encoder; it runs once a clip and mostly matters by its weight."""

    id: str
    params: int
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class EncoderUse:
    """Which encoder a model uses, and the tokens it always runs."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Denoiser:
    """The denoiser's work for N video tokens; pairs are (constant, per token), attention (N, N squared)."""

    class_name: str
    params: int
    copies: int
    layers: int
    width: int
    head_dim: int
    linear_flops: tuple[float, float]
    attention_flops: tuple[float, float]
    activation_bytes: tuple[float, float]
    traffic_bytes: tuple[float, float]
    traffic_from: str
    extra_params: int = 0
    mask_bytes_token2: float = 0.0


@dataclass(frozen=True, slots=True)
class TiledDecode:
    """Decoding in overlapping tiles: more arithmetic, far less memory."""

    work_factor: float
    fixed_bytes: float
    bytes_px: float


@dataclass(frozen=True, slots=True)
class FastDecode:
    """Our own kernels: the share they take of the time the VAE's layers take, where they are used."""

    share: float
    capabilities: tuple[str, ...]
    source: str
    as_of: str


@dataclass(frozen=True, slots=True)
class Vae:
    """The decoder's work: FLOPs by latent area and step, peak (per pixel, per pixel and frame), traffic.

    `norm_values_px`: values a pixel whose mean and variance a GroupNorm takes on 32 blocks, on any GPU.
    """

    id: str
    class_name: str
    params: int
    decoder_params: int
    latent_channels: int
    time_ratio: int
    space_ratio: int
    flops_first_latent: float
    flops_next_latent: float
    flops_attention_area2: float
    peak_bf16: tuple[float, float]
    peak_fp32: tuple[float, float]
    traffic_bytes_px: float
    traffic_from: str
    source: str
    as_of: str
    mask_bytes_px2: float = 0.0
    norm_values_px: float = 0.0
    tiled: TiledDecode | None = None
    fast: FastDecode | None = None
    match: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the released pipeline does when nothing is asked."""

    width: int
    height: int
    frames: int
    fps: int
    steps: int
    forwards_per_step: int


@dataclass(frozen=True, slots=True)
class VideoModel:
    """A text- or image-to-video model with its parts resolved."""

    id: str
    name: str
    denoiser: Denoiser
    vae: Vae
    text_encoders: tuple[tuple[TextEncoder, int], ...]
    patch: tuple[int, int, int]
    size_multiple: int
    frame_step: int
    defaults: Defaults
    is_guidance_batched: bool
    is_fixed_shape: bool
    source: str
    as_of: str
    repo: str | None = None
    note: str | None = None
