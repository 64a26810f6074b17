"""The child process that fits one picture to a size: stdin to stdout, with hard limits set first."""

import io
import resource
import sys

_MEMORY_BYTES = 2 << 30
_CPU_SECONDS = 20


def main() -> int:
    """Exit 0 with a PNG on stdout; anything else means that it cannot be done."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    width, height = int(sys.argv[1]), int(sys.argv[2])
    sys.stdout.buffer.write(cover(sys.stdin.buffer.read(), width, height))
    return 0


def cover(data: bytes, width: int, height: int) -> bytes:
    """RGB pixels of exactly this size, without transparency."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        fitted = ImageOps.fit(image.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    fitted.save(out, "PNG", compress_level=6)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
