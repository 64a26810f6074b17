"""What Filmgate runs today. The planner recommends nothing else.

tests/unit/planner/test_capabilities.py compares the features with the code of the runtime.
"""

from collections.abc import Callable
from dataclasses import dataclass

from filmgate.catalog.video_models import VideoModel
from filmgate.models.families import FAMILIES, FamilyFacts, FusedTime


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of the runtime that change a plan.

    `pipelines` are the diffusers pipelines that it loads, `compiled_pipelines` those that workers compile by
    default, `leveled_pipelines` those with quality levels. `weight_precisions` are what plans may use: fp8
    stands for products in fp8, which the runtime does not compute. `offload_levels` are the values of
    `pipeline.offload`.
    """

    pipelines: frozenset[str]
    compiled_pipelines: frozenset[str]
    leveled_pipelines: frozenset[str]
    weight_precisions: frozenset[str]
    offload_levels: tuple[str, ...]
    can_split_clips: bool
    can_scale_to_zero: bool

    def fused(self, model: VideoModel) -> FusedTime | None:
        """What fused kernels save, if the runtime has them for this model."""
        name = pipeline_class(model)
        return next((family.fused for family in FAMILIES if name in family.pipelines), None)

    def can_load(self, model: VideoModel) -> bool:
        """Whether the runtime has a family for the model; assumed where the pipeline is not known."""
        return model.pipeline is None or pipeline_class(model) in self.pipelines

    def is_compiled(self, model: VideoModel) -> bool:
        """Whether a worker compiles this model's blocks by default."""
        return pipeline_class(model) in self.compiled_pipelines

    def has_levels(self, model: VideoModel) -> bool:
        """Whether the runtime renders this model at quality levels below full."""
        return pipeline_class(model) in self.leveled_pipelines


def pipeline_class(model: VideoModel) -> str:
    """The class in the catalog's `pipeline`, without the arguments that may follow it; empty if not known."""
    return (model.pipeline or "").partition("(")[0].strip()


def _pipelines(wanted: Callable[[FamilyFacts], bool]) -> frozenset[str]:
    return frozenset(name for family in FAMILIES if wanted(family) for name in family.pipelines)


FILMGATE = Capabilities(
    pipelines=_pipelines(lambda _: True),
    compiled_pipelines=_pipelines(lambda family: family.is_compilation_proven),
    leveled_pipelines=_pipelines(lambda family: family.has_quality_levels),
    weight_precisions=frozenset({"bf16", "int8"}),
    offload_levels=("none", "model", "layers"),
    can_split_clips=False,
    can_scale_to_zero=True,
)
