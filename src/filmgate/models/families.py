"""The model families Filmgate runs: what the pipeline and the planner both need to know about them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FusedTime:
    """The time of a pass with fused kernels, as a share of the pass that a worker runs without them.

    With torch's attention, and with flash-attn-4.
    """

    with_torch: float
    with_flash: float
    compute_capabilities: tuple[str, ...] = ("9.0",)  # where it was measured


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """The diffusers pipelines of a family, and what was measured with them (docs/denoiser.md).

    `is_compilation_proven`: workers compile its blocks by default. `has_quality_levels`: it renders every
    quality level. `fused`: workers run its transformer with fused kernels where they are faster.
    """

    name: str
    text_to_video: str | None = None  # diffusers class that needs only a prompt
    image_to_video: str | None = None  # diffusers class that starts from an image
    is_compilation_proven: bool = False
    has_quality_levels: bool = False
    fused: FusedTime | None = None

    @property
    def pipelines(self) -> tuple[str, ...]:
        return tuple(name for name in (self.text_to_video, self.image_to_video) if name)


WAN = FamilyFacts(
    "wan",
    text_to_video="WanPipeline",
    image_to_video="WanImageToVideoPipeline",
    is_compilation_proven=True,
    has_quality_levels=True,
    fused=FusedTime(with_torch=0.96, with_flash=0.83),
)
LTX = FamilyFacts(
    "ltx",
    text_to_video="LTXPipeline",
    image_to_video="LTXImageToVideoPipeline",
    is_compilation_proven=True,
    fused=FusedTime(with_torch=0.90, with_flash=0.86),
)
COGVIDEOX = FamilyFacts(
    "cogvideox",
    text_to_video="CogVideoXPipeline",
    image_to_video="CogVideoXImageToVideoPipeline",
    fused=FusedTime(with_torch=0.76, with_flash=0.64),
)
HUNYUANVIDEO = FamilyFacts(
    "hunyuanvideo",
    text_to_video="HunyuanVideoPipeline",
    image_to_video="HunyuanVideoImageToVideoPipeline",
)
SVD = FamilyFacts("svd", image_to_video="StableVideoDiffusionPipeline")

FAMILIES = (WAN, LTX, COGVIDEOX, HUNYUANVIDEO, SVD)
