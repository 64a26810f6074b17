"""Wan 2.1 and 2.2."""

from dataclasses import replace
from typing import Any

from filmgate.jobs import Size
from filmgate.models.families import WAN
from filmgate.pipeline.loading.families.base import EMBEDS, Defaults, Family, Pipeline


class Wan(Family):
    """Wan 2.1, Wan 2.2 14B with two experts, and Wan 2.2 5B, which starts from text or an image."""

    facts = WAN
    embeddings = EMBEDS
    denoisers = ("transformer", "transformer_2")
    fps = 16

    def fuse(self, network: Any, attention: Any) -> Any | None:
        from filmgate.pipeline.denoise.fused.wan import FusedWan, can_fuse  # imports Triton

        return FusedWan(network, attention) if can_fuse(network) else None

    def takes_image(self, pipe: Pipeline) -> bool:
        return super().takes_image(pipe) or _is_5b(pipe)

    def defaults(self, pipe: Pipeline) -> Defaults:
        defaults = super().defaults(pipe)
        # The signature has the size of Wan 2.1; the 5B model was trained at another.
        return replace(defaults, size=Size(1280, 704), frames=121, fps=24) if _is_5b(pipe) else defaults


def _is_5b(pipe: Pipeline) -> bool:
    return bool(pipe.config.expand_timesteps)
