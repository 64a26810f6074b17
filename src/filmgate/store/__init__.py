"""Package 6 on the request path: encrypted objects and links to them. `base` has the port."""

from pathlib import Path
from urllib.parse import urlsplit

from filmgate.aws.clients import check_boto3
from filmgate.errors import SettingsError
from filmgate.settings import StoreSettings
from filmgate.settings.places import find_local
from filmgate.store.base import ObjectStore
from filmgate.store.keys.data_keys import DataKeys

DEFAULT_FOLDER = "objects"


def open_store(settings: StoreSettings, data: Path, keys: DataKeys) -> ObjectStore:
    """The store that the settings name by URL scheme."""
    folder = find_local(settings.url, data / DEFAULT_FOLDER, "store.url")
    if folder is not None:
        from filmgate.store.local.store import LocalStore

        return LocalStore(folder, keys, min_free_bytes=settings.min_free_bytes)
    scheme = urlsplit(settings.url).scheme
    if scheme == "s3":
        check_boto3("store.url")
        from filmgate.store.s3.store import open_s3_store

        return open_s3_store(settings)
    raise SettingsError(
        f"unknown store {scheme}://; expected file:///DIR or s3://BUCKET/PREFIX", option="store.url"
    )
