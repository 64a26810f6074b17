"""A first frame in the size a provider insists on: fitted in a child process, like every image we touch."""

import subprocess
import sys

from filmgate.errors import ProviderCannot

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHILD_SECONDS = 20.0


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from the header of a PNG, without decoding it; None for anything else."""
    if not data.startswith(_SIGNATURE) or len(data) < 24:
        return None
    return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])


def fit_image(data: bytes, size: tuple[int, int]) -> bytes:
    """The image scaled to cover this size, its overhang cut off evenly: the same bytes every time."""
    # An explicit interpreter in isolated mode: the child sees no environment and no current folder.
    command = [sys.executable, "-I", "-m", "filmgate.providers.image_child", str(size[0]), str(size[1])]
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=_CHILD_SECONDS, check=False)
    except subprocess.TimeoutExpired as exc:
        raise ProviderCannot("the first frame takes too long to fit") from exc
    if done.returncode != 0:
        raise ProviderCannot("the first frame cannot be fitted to the provider's size")
    return done.stdout
