"""Filmgate: video generation on GPUs you control. The Python API is `save_video` and `stream_frames`.

`import filmgate` is fast: torch is imported by the first call.
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
    """Write latents to an MP4 at `path`. Replaces `export_to_video`, and encodes while the GPU decodes.

    `vae` is a diffusers video VAE. `latents` is the output of its pipeline with `output_type="latent"`.
    """
    from filmgate.pipeline import clip_writer

    return clip_writer.save_video(vae, latents, path, fps=fps)


def stream_frames(vae: ModelMixin, latents: Tensor) -> Iterator[np.ndarray]:
    """Yield frames as uint8 [n, height, width, 3] on the host while the GPU decodes the next ones."""
    from filmgate.pipeline import clip_writer

    return clip_writer.stream_frames(vae, latents)
