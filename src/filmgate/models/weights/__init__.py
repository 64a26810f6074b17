"""Model weights in S3 or on the hub, versioned and verified, and the copies on this node.

location   s3://bucket/models/<name>/v<N>/      manifest   the files of a version with their SHA-256
remote     one version in S3, and its upload    fetch      downloads a version in parallel ranges, resumable
cache      one copy per node, LRU eviction      inventory  all models on this machine
hub        pinned models of the hub
"""

from contextlib import ExitStack
from pathlib import Path

from filmgate.models.weights.cache import ModelCache
from filmgate.models.weights.fetch import ReportProgress
from filmgate.models.weights.location import is_remote, parse_location
from filmgate.settings import ModelSettings


def open_cache(settings: ModelSettings, data: Path) -> ModelCache:
    """The model cache of this node."""
    folder = Path(settings.cache) if settings.cache else data / "models"
    return ModelCache(folder, settings)


def ensure_local(model: str, cache: ModelCache, held: ExitStack, report: ReportProgress | None = None) -> str:
    """The model as the loader takes it: s3:// URLs and hub ids become folders, pulled if necessary.

    A folder in the cache is not evicted before `held` closes. Any other model is returned unchanged.
    """
    from filmgate.models.names import is_hub_id

    if is_hub_id(model):
        from filmgate.models.weights.hub import ensure_hub_model  # needs the worker extra

        return ensure_hub_model(model, report)
    if not is_remote(model):
        return model
    return _acquire(model, cache, held, report)


def ensure_adapter(location: str, cache: ModelCache, held: ExitStack) -> Path:
    """The file or folder of an adapter; one in S3 or on the hub is pulled if necessary."""
    from filmgate.models.names import is_hub_file

    if is_remote(location):
        return Path(_acquire(location, cache, held))
    if is_hub_file(location):
        from filmgate.models.weights.hub import ensure_hub_adapter  # needs the worker extra

        return ensure_hub_adapter(location)
    return Path(location).expanduser()


def _acquire(url: str, cache: ModelCache, held: ExitStack, report: ReportProgress | None = None) -> str:
    acquired = cache.acquire(parse_location(url), report)
    held.enter_context(acquired.lock)
    return str(acquired.folder)
