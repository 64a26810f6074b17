"""The child process that decodes one image from stdin to stdout, under resource limits.

It imports nothing that takes long: it starts once per image.
"""

import io
import os
import resource
import sys
import warnings

REFUSED = 3  # exit code for an image with a fault; its reason is on stderr
_MEMORY_BYTES = 2 << 30
_CPU_SECONDS = 20
_FORMATS = ("PNG", "JPEG", "WEBP")


def main() -> int:
    """Exit code 0 with a PNG on stdout, or REFUSED."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Requests of other tenants come first where cores are scarce.
    os.nice(10)
    max_pixels = int(sys.argv[1])
    try:
        png = plain_png(sys.stdin.buffer.read(), max_pixels)
    except ValueError as exc:
        sys.stderr.write(str(exc))
        return REFUSED
    sys.stdout.buffer.write(png)
    return 0


def plain_png(data: bytes, max_pixels: int) -> bytes:
    """The first frame as an upright RGB PNG without metadata. Raises ValueError with the reason."""
    from PIL import Image, UnidentifiedImageError

    from filmgate.pipeline.pictures import flatten

    # Pillow also warns about a damaged EXIF block, which viewers ignore.
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    Image.MAX_IMAGE_PIXELS = max_pixels
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            pixels = flatten(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise ValueError(f"the image has more than {max_pixels} pixels") from exc
    except UnidentifiedImageError as exc:
        raise ValueError("the image is not PNG, JPEG or WebP") from exc
    except (OSError, SyntaxError, MemoryError, ValueError) as exc:
        raise ValueError("the image is damaged; send a file that other programs open") from exc
    fresh = Image.frombytes("RGB", pixels.size, pixels.tobytes())
    out = io.BytesIO()
    fresh.save(out, "PNG", compress_level=1)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
