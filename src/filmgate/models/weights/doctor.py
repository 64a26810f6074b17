"""What `filmgate doctor` asks about the model cache: can it be written, and is its budget real?"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filmgate.settings import ModelSettings
from filmgate.telemetry.findings import Finding, Verdict

_SUBJECT = "model cache"


def examine_cache(settings: ModelSettings) -> Iterator[Finding]:
    """Findings about a cache that was configured; the default one is in the data folder."""
    if not settings.cache:
        return
    folder = Path(settings.cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            disk = shutil.disk_usage(folder)
    except OSError as exc:
        remedy = "set models.cache to a folder this process may write"
        yield Finding(_SUBJECT, Verdict.FAIL, f"{folder}: {exc.strerror}", remedy)
        return
    words = f"{folder}: {disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB free"
    if settings.cache_bytes > disk.total:
        remedy = f"set models.cache_bytes to at most {disk.total}"
        yield Finding(_SUBJECT, Verdict.WARN, f"{words}, the budget is larger than the disk", remedy)
        return
    yield Finding(_SUBJECT, Verdict.OK, words)
