"""Keys that encrypt: one per tenant, wrapping a data key per object. `base` has the port."""

from pathlib import Path
from urllib.parse import urlsplit

from filmgate.errors import SettingsError
from filmgate.keyring.base import Keyring
from filmgate.settings import StoreSettings

DEFAULT_FOLDER = "keys"


def open_keyring(settings: StoreSettings, data: Path) -> Keyring:
    """The keyring the settings name by URL scheme."""
    url = urlsplit(settings.keyring)
    if url.scheme in ("", "file"):
        from filmgate.keyring.files import FileKeyring

        return FileKeyring(Path(url.path) if url.path else data / DEFAULT_FOLDER)
    raise SettingsError(f"no keyring is called {url.scheme}://; expected file:///DIR", option="store.keyring")
