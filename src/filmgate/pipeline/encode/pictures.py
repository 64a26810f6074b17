"""Pictures as JPEG and on one sheet; knows frames only as finished pictures, and nothing of torch."""

from io import BytesIO

from PIL import Image

SPRITE_COLUMNS, SPRITE_ROWS, SPRITE_WIDTH = 4, 4, 240


def sprite_places(total_frames: int) -> set[int]:
    """The frames that go on the sheet: sixteen, evenly spread, or all of a shorter clip."""
    count = min(SPRITE_COLUMNS * SPRITE_ROWS, total_frames)
    return {n * total_frames // count for n in range(count)}


def to_jpeg(picture: Image.Image) -> bytes:
    """The picture as JPEG, good enough to be looked at closely."""
    buffer = BytesIO()
    picture.save(buffer, "JPEG", quality=86)
    return buffer.getvalue()


def sheet(pictures: list[Image.Image]) -> Image.Image:
    """The pictures on one sheet, four in a row, in reading order."""
    width, height = pictures[0].size
    rows = -(-len(pictures) // SPRITE_COLUMNS)
    columns = min(SPRITE_COLUMNS, len(pictures))
    canvas = Image.new("RGB", (columns * width, rows * height))
    for n, picture in enumerate(pictures):
        canvas.paste(picture, (n % SPRITE_COLUMNS * width, n // SPRITE_COLUMNS * height))
    return canvas
