"""Doctor check of the model cache: its folder is writable and its budget fits the disk."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filmgate.settings import ModelSettings
from filmgate.telemetry.findings import Finding, Verdict

_SUBJECT = "model cache"


def check_cache(settings: ModelSettings) -> Iterator[Finding]:
    """A finding about a configured cache. The default cache is in the data folder and has none."""
    if not settings.cache:
        return
    folder = Path(settings.cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            disk = shutil.disk_usage(folder)
    except OSError as exc:
        remedy = "set models.cache to a folder that this process can write"
        yield Finding(_SUBJECT, Verdict.FAIL, f"{folder}: {exc.strerror}", remedy)
        return
    message = f"{folder}: {disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB free"
    if settings.cache_bytes > disk.total:
        remedy = f"set models.cache_bytes to at most {disk.total}"
        yield Finding(_SUBJECT, Verdict.WARN, f"{message}; models.cache_bytes exceeds the disk", remedy)
        return
    yield Finding(_SUBJECT, Verdict.OK, message)
