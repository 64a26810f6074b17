"""The pixel formats of finished clips: chroma rows and bits, and which codec can write them."""

from collections.abc import Mapping
from types import MappingProxyType

from filmgate.errors import UnsupportedValue

PLAYABLE = "yuv420p"
"""The one that browsers and phones play."""

_ALL = (PLAYABLE, "yuv420p10", "yuv422p", "yuv422p10")
FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"h264": _ALL, "hevc": _ALL, "av1": _ALL[:2]}  # as the software encoders do
)


def check_pixel_format(pixel_format: str | None, codec: str) -> None:
    """Raises UnsupportedValue with the list if the codec cannot write it. None is the service's own."""
    if pixel_format is not None and pixel_format not in FORMATS[codec]:
        raise UnsupportedValue(
            f"{codec} clips have no pixel format {pixel_format[:20]!r}; use {', '.join(FORMATS[codec])}",
            option="pixel_format",
        )
