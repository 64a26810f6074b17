"""Reference images as a viewer shows them. Imports only Pillow: a child process of the server uses it."""

from PIL import Image, ImageOps

_WHITE = (255, 255, 255)


def flatten(image: Image.Image) -> Image.Image:
    """The image upright, in RGB, and on white where it is transparent."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # Pillow would cut 16 bits of grey off at 255
        upright = upright.point(lambda value: value / 257)
    if upright.has_transparency_data:
        seen = upright.convert("RGBA")
        upright = Image.new("RGB", seen.size, _WHITE)
        upright.paste(seen, mask=seen.getchannel("A"))
    return upright.convert("RGB")
