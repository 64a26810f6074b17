"""Encryption keys: one per tenant, which wraps the data keys that encrypt. `base` has the port."""

from pathlib import Path
from urllib.parse import urlsplit

from filmgate.aws.clients import check_boto3
from filmgate.errors import SettingsError
from filmgate.settings import StoreSettings
from filmgate.store.keys.base import Keyring
from filmgate.store.keys.data_keys import DataKeys

DEFAULT_FOLDER = "keys"


def open_keys(settings: StoreSettings, data: Path) -> DataKeys:
    """The data keys of this process. Open them once and share them."""
    return DataKeys(open_keyring(settings, data))


def open_keyring(settings: StoreSettings, data: Path) -> Keyring:
    """The keyring that the settings name by URL scheme."""
    url = urlsplit(settings.keyring)
    if url.scheme in ("", "file"):
        from filmgate.store.keys.files import FileKeyring

        return FileKeyring(Path(url.path) if url.path else data / DEFAULT_FOLDER)
    if url.scheme == "kms":
        check_boto3("store.keyring")
        from filmgate.store.keys.kms import open_kms_keyring

        return open_kms_keyring(settings)
    raise SettingsError(
        f"unknown keyring {url.scheme}://; expected file:///DIR or kms://", option="store.keyring"
    )
