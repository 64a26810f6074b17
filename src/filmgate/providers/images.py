"""Resizes a first frame to the size that a provider requires, in a child process under resource limits."""

import subprocess
import sys

from filmgate.errors import ProviderCannot
from filmgate.jobs import Size

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHILD_SECONDS = 20.0


def png_size(data: bytes) -> Size | None:
    """The size from the header of a PNG; None if the data is no PNG."""
    if not data.startswith(_SIGNATURE) or len(data) < 24:
        return None
    return Size(int.from_bytes(data[16:20]), int.from_bytes(data[20:24]))


def fit_image(data: bytes, size: Size) -> bytes:
    """The image scaled to cover this size and cropped around the centre. Deterministic."""
    # Isolated mode and an empty environment: the child gets no secret and ignores the current folder.
    command = [
        sys.executable,
        "-I",
        "-m",
        "filmgate.providers.image_child",
        str(size.width),
        str(size.height),
    ]
    try:
        done = subprocess.run(
            command, input=data, capture_output=True, timeout=_CHILD_SECONDS, check=False, env={}
        )
    except subprocess.TimeoutExpired as exc:
        raise ProviderCannot("resizing the first frame took too long") from exc
    if done.returncode != 0:
        raise ProviderCannot("the first frame cannot be resized to the provider's size")
    return done.stdout
