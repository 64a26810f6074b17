"""Quality levels: step caches that trade a measured difference for time. `full`, the default, has none."""

from typing import Any, Literal

from filmgate.errors import SettingsError
from filmgate.pipeline.loading.families import Family, denoisers_of

Quality = Literal["full", "balanced", "draft"]

THRESHOLDS: dict[Quality, float] = {"balanced": 0.05, "draft": 0.1}
"""First-block cache: while the first block's output has changed by less than this since the last full pass
(mean of differences over mean), the other blocks' contribution is taken from that pass."""
FAMILIES = ("wan",)


def apply_quality(pipe: Any, family: Family, quality: Quality) -> None:
    """Put the level's step cache on every denoiser; raises SettingsError where it has not been tried."""
    if quality == "full":
        return
    if family.name not in FAMILIES:
        raise SettingsError(
            f"{quality} works with {', '.join(FAMILIES)}, not with {family.name}; set it to full",
            option="pipeline.quality",
        )
    from diffusers import FirstBlockCacheConfig

    for network in denoisers_of(pipe):
        network.enable_cache(FirstBlockCacheConfig(threshold=THRESHOLDS[quality]))


def forget_steps(pipe: Any) -> None:
    """Drop what a step cache holds: a cancelled clip leaves its own behind, and the next may be another's."""
    for network in denoisers_of(pipe):
        if getattr(network, "is_cache_enabled", False):
            network._reset_stateful_cache()  # noqa: SLF001 - tests/contract
