"""What Filmgate runs today. The planner recommends nothing else.

tests/unit/planner/test_capabilities.py compares the features with the code of the runtime.
"""

from dataclasses import dataclass

from filmgate.catalog.video_models import VideoModel
from filmgate.models.families import FAMILIES, FamilyFacts


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of the runtime that change a plan.

    `weight_precisions` are what plans may use: fp8 stands for products in fp8, which the runtime does not
    compute.
    """

    weight_precisions: frozenset[str] = frozenset({"bf16", "int8"})
    can_split_clips: bool = False
    can_scale_to_zero: bool = True


FILMGATE = Capabilities()


def pipeline_class(model: VideoModel) -> str:
    """The class in the catalog's `pipeline`, without the arguments that may follow it; empty if not known."""
    return (model.pipeline or "").partition("(")[0].strip()


def family_of(model: VideoModel) -> FamilyFacts | None:
    """The family of the runtime that loads the model; None if there is none, or the pipeline is not known."""
    return next((family for family in FAMILIES if pipeline_class(model) in family.pipelines), None)
