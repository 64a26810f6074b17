"""Keys that encrypt: one per tenant, wrapping a data key per object. `base` has the port."""

from pathlib import Path
from urllib.parse import urlsplit

from filmgate.aws.clients import check_boto3
from filmgate.errors import SettingsError
from filmgate.settings import StoreSettings
from filmgate.store.keys.base import Keyring

DEFAULT_FOLDER = "keys"


def open_keyring(settings: StoreSettings, data: Path) -> Keyring:
    """The keyring the settings name by URL scheme."""
    url = urlsplit(settings.keyring)
    if url.scheme in ("", "file"):
        from filmgate.store.keys.files import FileKeyring

        return FileKeyring(Path(url.path) if url.path else data / DEFAULT_FOLDER)
    if url.scheme == "kms":
        check_boto3("store.keyring")
        from filmgate.store.keys.kms import open_kms_keyring

        return open_kms_keyring(settings)
    raise SettingsError(
        f"no keyring is called {url.scheme}://; expected file:///DIR or kms://", option="store.keyring"
    )
