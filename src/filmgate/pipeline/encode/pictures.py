"""Frames as images, JPEG and sprite sheets. Does not import torch."""

from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    import av

SPRITE_COLUMNS, SPRITE_ROWS, SPRITE_WIDTH = 4, 4, 240


def sprite_frames(total_frames: int) -> set[int]:
    """Return the numbers of the frames on the sheet: sixteen, evenly spaced, or all of a shorter clip."""
    count = min(SPRITE_COLUMNS * SPRITE_ROWS, total_frames)
    return {n * total_frames // count for n in range(count)}


def to_image(
    frame: "av.VideoFrame", width: int, clip_size: tuple[int, int] | None = None, **colour: Any
) -> Image.Image:
    """Convert a frame of a clip to RGB and scale it to `width`. `colour` overrides its colour tags.

    `clip_size` is width and height of the clip, if they are not those of the frame.
    """
    clip_width, clip_height = clip_size or (frame.width, frame.height)
    height = max(round(clip_height * width / clip_width), 1)
    return Image.fromarray(frame.reformat(width, height, "rgb24", **colour).to_ndarray())


def to_jpeg(image: Image.Image) -> bytes:
    """Encode the image as JPEG at a quality without visible artefacts."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=86)
    return buffer.getvalue()


def to_sheet(images: list[Image.Image]) -> Image.Image:
    """Put the images on one sheet, four per row."""
    width, height = images[0].size
    rows = -(-len(images) // SPRITE_COLUMNS)
    columns = min(SPRITE_COLUMNS, len(images))
    canvas = Image.new("RGB", (columns * width, rows * height))
    for n, image in enumerate(images):
        canvas.paste(image, (n % SPRITE_COLUMNS * width, n // SPRITE_COLUMNS * height))
    return canvas
