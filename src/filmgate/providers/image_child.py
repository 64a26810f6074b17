"""The child process that resizes one image from stdin to stdout, under resource limits."""

import io
import resource
import sys

_MEMORY_BYTES = 2 << 30
_CPU_SECONDS = 20


def main() -> int:
    """Exit code 0 with a PNG on stdout; any other code means failure."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    width, height = int(sys.argv[1]), int(sys.argv[2])
    sys.stdout.buffer.write(cover(sys.stdin.buffer.read(), width, height))
    return 0


def cover(data: bytes, width: int, height: int) -> bytes:
    """A PNG of exactly this size, without transparency."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
        fitted = ImageOps.fit(image.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    fitted.save(out, "PNG", compress_level=6)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
