"""The model families Filmgate runs. A new family is one file here and its entry in `FAMILIES`."""

from filmgate.pipeline.loading.families.base import Family
from filmgate.pipeline.loading.families.cogvideox import CogVideoX
from filmgate.pipeline.loading.families.hunyuanvideo import HunyuanVideo
from filmgate.pipeline.loading.families.ltx import Ltx
from filmgate.pipeline.loading.families.svd import StableVideoDiffusion
from filmgate.pipeline.loading.families.wan import Wan

FAMILIES: tuple[Family, ...] = (Wan(), Ltx(), CogVideoX(), HunyuanVideo(), StableVideoDiffusion())


def family_of(pipeline_class: str) -> Family | None:
    """The family of a diffusers pipeline class; None if Filmgate does not run it."""
    return next((family for family in FAMILIES if pipeline_class in family.facts.pipelines), None)


def known_pipelines() -> list[str]:
    """Every diffusers pipeline class that Filmgate runs, sorted."""
    return sorted(name for family in FAMILIES for name in family.facts.pipelines)
