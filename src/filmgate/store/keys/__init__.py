"""Encryption keys: one per tenant, which wraps the data keys that encrypt. `base` has the port."""

from pathlib import Path
from urllib.parse import urlsplit

from filmgate.aws.clients import check_boto3
from filmgate.errors import SettingsError
from filmgate.settings import StoreSettings
from filmgate.settings.places import find_local
from filmgate.store.keys.base import Keyring
from filmgate.store.keys.data_keys import DataKeys

DEFAULT_FOLDER = "keys"


def open_keys(settings: StoreSettings, data: Path) -> DataKeys:
    """The data keys of this process. Open them once and share them."""
    return DataKeys(open_keyring(settings, data))


def open_keyring(settings: StoreSettings, data: Path) -> Keyring:
    """The keyring that the settings name by URL scheme."""
    folder = find_local(settings.keyring, data / DEFAULT_FOLDER, "store.keyring")
    if folder is not None:
        from filmgate.store.keys.files import FileKeyring

        return FileKeyring(folder)
    scheme = urlsplit(settings.keyring).scheme
    if scheme == "kms":
        check_boto3("store.keyring")
        from filmgate.store.keys.kms import open_kms_keyring

        return open_kms_keyring(settings)
    raise SettingsError(
        f"unknown keyring {scheme}://; expected file:///DIR or kms://", option="store.keyring"
    )
