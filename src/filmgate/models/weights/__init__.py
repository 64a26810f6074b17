"""Beside the path: model weights in S3, versioned and checked, and the cache of them that a node keeps.

location   s3://bucket/models/<name>/v<N>/      manifest   every file of a version, with its SHA-256
remote     what is asked of S3                  fetch      one version, in parallel ranges, resumable
cache      one copy a node, evicted by age      push       a folder becomes a version
"""

from contextlib import ExitStack
from pathlib import Path

from filmgate.models.weights.cache import ModelCache
from filmgate.models.weights.fetch import Report
from filmgate.models.weights.location import is_remote, parse_location
from filmgate.models.weights.remote import open_remote
from filmgate.settings import ModelSettings


def open_cache(settings: ModelSettings, data: Path) -> ModelCache:
    """The cache of this node."""
    folder = Path(settings.cache) if settings.cache else data / "models"
    return ModelCache(folder, settings, lambda location: open_remote(location, settings))


def localise(model: str, cache: ModelCache, held: ExitStack, report: Report | None = None) -> str:
    """Where the loader finds this model: an s3:// address becomes its folder in the cache, pulled if need be.

    The folder is safe from eviction until `held` closes. Any other name is its own answer.
    """
    if not is_remote(model):
        return model
    taken = cache.take(parse_location(model), report)
    held.enter_context(taken.lock)
    return str(taken.folder)
