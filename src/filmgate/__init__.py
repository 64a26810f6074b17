"""Filmgate: self-hosted video generation on your own GPUs.

The Python API is `generate`, `save_video` and `stream_frames`; `filmgate.client` talks to a server.

`import filmgate` is fast: torch is imported by the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from diffusers import ModelMixin
    from torch import Tensor

__version__ = "0.1.0"
__all__ = ["generate", "save_video", "stream_frames"]


def generate(prompt: str, path: str | Path = "clip.mp4", *, model: str = "flipbook", **options: Any) -> Path:
    """Render a prompt to an MP4 at `path` in this process, with the settings of this folder.

    `model` is a built-in model, a catalog model, a diffusers folder, a hub id or s3://.... `options` are
    `size` as "WIDTHxHEIGHT", `seconds`, `frames`, `fps`, `steps`, `seed`, `guidance`, `quality` and
    `negative_prompt`.
    """
    from pathlib import Path

    from filmgate.jobs import Size
    from filmgate.models.names import name_model
    from filmgate.models.requests import VideoRequest
    from filmgate.pipeline.generate import LocalModel
    from filmgate.settings import load_settings

    if isinstance(options.get("size"), str):
        options["size"] = Size.parse(options["size"])
    named = name_model(model)
    request = VideoRequest(prompt, named.name, **options)
    with LocalModel(named, load_settings()) as loaded:
        loaded.render(request, Path(path))
    return Path(path)


def save_video(vae: ModelMixin, latents: Tensor, path: str | Path, *, fps: float = 16) -> Path:
    """Write latents to an MP4 at `path`. Replaces `export_to_video`, and encodes while the GPU decodes.

    `vae` is a diffusers video VAE. `latents` is the output of its pipeline with `output_type="latent"`.
    CogVideoX 1.5 puts a frame of padding before an odd number of latent frames: pass `latents[:, 1:]` then.
    """
    from filmgate.pipeline import clip_writer

    return clip_writer.save_video(vae, latents, path, fps=fps)


def stream_frames(vae: ModelMixin, latents: Tensor) -> Iterator[np.ndarray]:
    """Yield frames as uint8 [n, height, width, 3] on the host while the GPU decodes the next ones."""
    from filmgate.pipeline import clip_writer

    return clip_writer.stream_frames(vae, latents)
