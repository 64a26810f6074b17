"""LTX-Video."""

from typing import Any

from torch import Tensor

from filmgate.models.families import LTX
from filmgate.pipeline.loading.families.base import MASKED_EMBEDS, Compression, Family, Pipeline
from filmgate.pipeline.requests import ClipRequest


class Ltx(Family):
    """LTX-Video up to 0.9.5. The same weights start from text or an image."""

    facts = LTX
    embeddings = MASKED_EMBEDS
    fps = 25
    size_multiple = 32

    def fuse(self, network: Any, attention: Any) -> Any | None:
        from filmgate.pipeline.denoise.fused.ltx import FusedLtx, can_fuse  # imports Triton

        return FusedLtx(network, attention) if can_fuse(network) else None

    def takes_image(self, pipe: Pipeline) -> bool:  # noqa: ARG002
        return True

    def needs_image(self, pipe: Pipeline) -> bool:  # noqa: ARG002
        return False

    def compression(self, pipe: Pipeline) -> Compression:
        return Compression(pipe.vae_spatial_compression_ratio, pipe.vae_temporal_compression_ratio)

    def unpack_latents(self, pipe: Pipeline, latents: Tensor, request: ClipRequest) -> Tensor:
        """LTX returns a sequence of tokens."""
        spatial, temporal = self.compression(pipe)
        unpacked: Tensor = pipe._unpack_latents(  # noqa: SLF001 - guarded by tests/contract
            latents,
            (request.frames - 1) // temporal + 1,
            request.height // spatial,
            request.width // spatial,
            pipe.transformer_spatial_patch_size,
            pipe.transformer_temporal_patch_size,
        )
        return unpacked
