"""What Filmgate runs today. The planner recommends nothing that this table does not contain.

tests/unit/planner/test_capabilities.py compares the table with the code of the runtime.
"""

from dataclasses import dataclass

from filmgate.catalog.video_models import VideoModel


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
    can_serve_adapters: bool
    can_scale_to_zero: bool

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


FILMGATE = Capabilities(
    pipelines=frozenset(
        {
            "CogVideoXImageToVideoPipeline",
            "CogVideoXPipeline",
            "HunyuanVideoImageToVideoPipeline",
            "HunyuanVideoPipeline",
            "LTXImageToVideoPipeline",
            "LTXPipeline",
            "StableVideoDiffusionPipeline",
            "WanImageToVideoPipeline",
            "WanPipeline",
        }
    ),
    compiled_pipelines=frozenset({"WanImageToVideoPipeline", "WanPipeline"}),
    leveled_pipelines=frozenset({"WanImageToVideoPipeline", "WanPipeline"}),
    weight_precisions=frozenset({"bf16", "int8"}),
    offload_levels=("none", "model", "layers"),
    can_split_clips=False,
    can_serve_adapters=True,
    can_scale_to_zero=True,
)
