"""Filmgate: video generation on GPUs you control. The Python surface is `save_video` and `stream_frames`.

Importing filmgate is instant: torch comes in with the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from diffusers import ModelMixin
    from torch import Tensor

__version__ = "0.1.0"
__all__ = ["save_video", "stream_frames"]


def save_video(vae: ModelMixin, latents: Tensor, path: str | Path, *, fps: float = 16) -> Path:
    """Write latents to an MP4 at `path` while the GPU decodes: what `export_to_video` does, without the wait.

    `vae` is a diffusers video VAE, `latents` what its pipeline returns with `output_type="latent"`.
    """
    from filmgate.pipeline import clip_writer

    return clip_writer.save_video(vae, latents, path, fps=fps)


def stream_frames(vae: ModelMixin, latents: Tensor) -> Iterator[np.ndarray]:
    """Yield frames as uint8 [n, height, width, 3] on the host as they are ready, while the GPU works on."""
    from filmgate.pipeline import clip_writer

    return clip_writer.stream_frames(vae, latents)
