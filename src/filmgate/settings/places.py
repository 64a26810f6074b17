"""Settings that name a place by URL scheme."""

from pathlib import Path
from urllib.parse import urlsplit

from filmgate.errors import SettingsError


def find_local(url: str, default: Path, option: str) -> Path | None:
    """The path of a file URL, `default` for an empty setting, None for another scheme.

    Raises SettingsError that names `option` for file://keys: that is a host without a path, not a folder.
    """
    if not url:
        return default
    parts = urlsplit(url)
    if parts.scheme not in ("", "file"):
        return None
    if parts.netloc:
        message = (
            f"{url!r} names the host {parts.netloc}; a path has three slashes, as in file:///{parts.netloc}"
        )
        raise SettingsError(message, option=option)
    return Path(parts.path)
