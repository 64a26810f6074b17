"""Preview, thumbnail and sprite sheet, taken from the frames on their way to the encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from filmgate.errors import UsageError, WriteError
from filmgate.jobs import StillKind
from filmgate.pipeline.encode.encoder import to_video_frame
from filmgate.pipeline.encode.pictures import SPRITE_WIDTH, sprite_frames, to_image, to_jpeg, to_sheet
from filmgate.pipeline.transfer.colour import Yuv420, YuvLayout

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


@dataclass(frozen=True, slots=True)
class StillPaths:
    """Where to save stills; None saves nothing."""

    thumbnail: Path | None = None
    spritesheet: Path | None = None

    def __post_init__(self) -> None:
        """Reject an unsupported format before the clip is rendered."""
        for option, path in (("--thumbnail", self.thumbnail), ("--spritesheet", self.spritesheet)):
            if path is not None and path.suffix.lower() not in SUFFIXES:
                raise UsageError(
                    f"{path} does not name an image; end it in {', '.join(SUFFIXES)}", option=option
                )


OnStill = Callable[[StillKind, bytes], None]
"""Receives each still as JPEG: the preview with the first frame, the others after the last."""


class Stills:
    """Collects the stills of one clip: keeps the middle frame and sixteen small ones.

    `clip_size` is width and height of the clip, if its frames are scaled before they are encoded.
    """

    def __init__(
        self,
        paths: StillPaths,
        total_frames: int,
        on_still: OnStill | None = None,
        layout: YuvLayout | None = None,
        clip_size: tuple[int, int] | None = None,
    ) -> None:
        self._paths = paths
        self._clip_size = clip_size
        self._layout = layout or Yuv420()
        self._on_still = on_still
        has_sprites = paths.spritesheet or on_still
        self._sprite_at = sprite_frames(total_frames) if has_sprites else set()
        self._thumbnail_at = total_frames // 2 if paths.thumbnail or on_still else -1
        self._seen = 0
        self._thumbnail: Image.Image | None = None
        self._sprites: list[Image.Image] = []
        self._saved: list[Path] = []

    def add(self, frames: np.ndarray) -> None:
        """Take the next frames [n, *frame_shape] of the layout; copies only the frames it keeps."""
        for planes in frames:
            if self._seen == 0 and self._on_still:
                self._on_still(StillKind.PREVIEW, to_jpeg(self._to_image(planes)))
            if self._seen == self._thumbnail_at:
                self._thumbnail = self._to_image(planes)
            if self._seen in self._sprite_at:
                self._sprites.append(self._to_image(planes, SPRITE_WIDTH))
            self._seen += 1

    def save(self) -> None:
        """Emit and save the thumbnail and the sprite sheet. The suffix of a path picks the format."""
        if self._on_still and self._thumbnail:
            self._on_still(StillKind.THUMBNAIL, to_jpeg(self._thumbnail))
            self._on_still(StillKind.SPRITESHEET, to_jpeg(to_sheet(self._sprites)))
        if self._paths.thumbnail and self._thumbnail:
            self._save(self._thumbnail, self._paths.thumbnail, quality=88)
        if self._paths.spritesheet and self._sprites:
            self._save(to_sheet(self._sprites), self._paths.spritesheet, quality=85)

    def discard(self) -> None:
        """Delete the saved stills of a clip that could not be published."""
        for path in self._saved:
            path.unlink(missing_ok=True)

    def _save(self, image: Image.Image, path: Path, quality: int) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path, quality=quality)
        except (OSError, ValueError) as exc:
            raise WriteError(f"cannot write {path}: {exc}") from exc
        self._saved.append(path)

    def _to_image(self, planes: np.ndarray, max_width: int | None = None) -> Image.Image:
        """Convert a frame to an image of the clip's size, at most `max_width` wide."""
        frame = to_video_frame(planes, self._layout)
        full_width, _ = self._clip_size or (frame.width, frame.height)
        width = min(max_width or full_width, full_width)
        colours = {"src_colorspace": "ITU709", "src_color_range": "MPEG"}
        return to_image(frame, width, self._clip_size, **colours)
