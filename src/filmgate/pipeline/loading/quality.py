"""Quality levels: step caches that skip part of the work at a stated loss. `full`, the default, uses none."""

from typing import Any, Literal

from filmgate.errors import SettingsError
from filmgate.pipeline.loading.families import FAMILIES
from filmgate.pipeline.loading.families.base import Family, Pipeline

Quality = Literal["full", "balanced", "draft"]

THRESHOLDS: dict[Quality, float] = {"balanced": 0.05, "draft": 0.1}
"""Thresholds of the first-block cache.

While the output of the first block has changed by less than this since the last full pass (mean absolute
difference over mean absolute value), the contribution of the other blocks is reused from that pass.
"""


def apply_quality(pipe: Pipeline, family: Family, quality: Quality) -> None:
    """Enable the step cache of this level on every denoiser. Raises SettingsError if the family has none."""
    if quality == "full":
        return
    if not family.has_quality_levels:
        supported = ", ".join(known.name for known in FAMILIES if known.has_quality_levels)
        raise SettingsError(
            f"{quality} works with {supported}, not with {family.name}; set it to full",
            option="pipeline.quality",
        )
    from diffusers import FirstBlockCacheConfig

    for network in family.denoisers_of(pipe):
        network.enable_cache(FirstBlockCacheConfig(threshold=THRESHOLDS[quality]))


def reset_step_caches(networks: list[Any]) -> None:
    """Clear the step caches before a clip, because a cancelled clip leaves its own state in them."""
    for network in networks:
        if getattr(network, "is_cache_enabled", False):
            network._reset_stateful_cache()  # noqa: SLF001 - guarded by tests/contract
