"""Beside the path: model weights in S3, versioned and verified, and the node's cache of them.

location   s3://bucket/models/<name>/v<N>/      manifest   the files of a version with their SHA-256
remote     one version in S3                    fetch      downloads a version in parallel ranges, resumable
cache      one copy per node, LRU eviction      push       uploads a folder as a version
"""

from contextlib import ExitStack
from pathlib import Path

from filmgate.models.weights.cache import ModelCache
from filmgate.models.weights.fetch import ReportProgress
from filmgate.models.weights.location import is_remote, parse_location
from filmgate.models.weights.remote import open_remote
from filmgate.settings import ModelSettings


def open_cache(settings: ModelSettings, data: Path) -> ModelCache:
    """The model cache of this node."""
    folder = Path(settings.cache) if settings.cache else data / "models"
    return ModelCache(folder, settings, lambda location: open_remote(location, settings))


def ensure_local(model: str, cache: ModelCache, held: ExitStack, report: ReportProgress | None = None) -> str:
    """The model as the loader takes it: an s3:// URL becomes its folder in the cache, pulled if necessary.

    The folder is not evicted before `held` closes. Any other model is returned unchanged.
    """
    if not is_remote(model):
        return model
    acquired = cache.acquire(parse_location(model), report)
    held.enter_context(acquired.lock)
    return str(acquired.folder)
