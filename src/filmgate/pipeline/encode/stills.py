"""Preview, thumbnail and sprite sheet from the frames that go to the encoder: no second decode."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import av
import numpy as np
from PIL import Image

from filmgate.errors import UsageError, WriteError
from filmgate.pipeline.encode.pictures import SPRITE_WIDTH, sheet, sprite_places, to_jpeg
from filmgate.pipeline.transfer.colour import Yuv420

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


@dataclass(frozen=True, slots=True)
class StillPaths:
    """Where to leave stills; None leaves one out."""

    thumbnail: Path | None = None
    spritesheet: Path | None = None

    def __post_init__(self) -> None:
        """Refuse a format nobody can write now, not after the clip has been made."""
        for option, path in (("--thumbnail", self.thumbnail), ("--spritesheet", self.spritesheet)):
            if path is not None and path.suffix.lower() not in SUFFIXES:
                raise UsageError(
                    f"{path} is no picture's name; end it in {', '.join(SUFFIXES)}", option=option
                )


class StillKind(StrEnum):
    """What a still is for: shown while the clip is made, instead of it, or under a finger that scrubs."""

    PREVIEW = "preview"
    THUMBNAIL = "thumbnail"
    SPRITESHEET = "spritesheet"


OnStill = Callable[[StillKind, bytes], None]
"""Hears of each still as a JPEG: the preview with the first frame, the others with the last."""


class Stills:
    """Watches frames go by and keeps the few it needs: the middle one, and sixteen small ones."""

    def __init__(self, paths: StillPaths, total_frames: int, on_still: OnStill | None = None) -> None:
        self._paths = paths
        self._on_still = on_still
        has_sprites = paths.spritesheet or on_still
        self._sprite_at = sprite_places(total_frames) if has_sprites else set()
        self._thumbnail_at = total_frames // 2 if paths.thumbnail or on_still else -1
        self._seen = 0
        self._thumbnail: Image.Image | None = None
        self._sprites: list[Image.Image] = []
        self._saved: list[Path] = []

    def watch(self, frames: np.ndarray) -> None:
        """Look at frames [n, height * 3 / 2, width]; copies only what is kept."""
        for planes in frames:
            if self._seen == 0 and self._on_still:
                self._on_still(StillKind.PREVIEW, to_jpeg(to_picture(planes, planes.shape[1])))
            if self._seen == self._thumbnail_at:
                self._thumbnail = to_picture(planes, planes.shape[1])
            if self._seen in self._sprite_at:
                self._sprites.append(to_picture(planes, min(SPRITE_WIDTH, planes.shape[1])))
            self._seen += 1

    def save(self) -> None:
        """Hand out the stills that were asked for; a path's suffix picks the format."""
        if self._on_still and self._thumbnail:
            self._on_still(StillKind.THUMBNAIL, to_jpeg(self._thumbnail))
            self._on_still(StillKind.SPRITESHEET, to_jpeg(sheet(self._sprites)))
        if self._paths.thumbnail and self._thumbnail:
            self._save(self._thumbnail, self._paths.thumbnail, quality=88)
        if self._paths.spritesheet and self._sprites:
            self._save(sheet(self._sprites), self._paths.spritesheet, quality=85)

    def discard(self) -> None:
        """Take back what was saved: the clip it belongs to did not come to be."""
        for path in self._saved:
            path.unlink(missing_ok=True)

    def _save(self, picture: Image.Image, path: Path, quality: int) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path, quality=quality)
        except (OSError, ValueError) as exc:
            raise WriteError(f"cannot write {path}: {exc}") from exc
        self._saved.append(path)


def to_picture(planes: np.ndarray, width: int) -> Image.Image:
    """An RGB picture of a YUV 4:2:0 frame, scaled to `width`."""
    frame = av.VideoFrame.from_ndarray(planes, format=Yuv420.ffmpeg_name)
    height = max(round(frame.height * width / frame.width), 1)
    rgb = frame.reformat(width, height, "rgb24", src_colorspace="ITU709", src_color_range="MPEG")
    return Image.fromarray(rgb.to_ndarray())
