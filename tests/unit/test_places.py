"""Settings that name a folder or a file by URL."""

from pathlib import Path

import pytest

from filmgate.audit.anchors import open_anchor
from filmgate.errors import SettingsError
from filmgate.settings import Settings, with_values
from filmgate.settings.places import find_local
from filmgate.store import open_store
from filmgate.store.keys import open_keyring

DEFAULT = Path("data/objects")


@pytest.mark.parametrize(
    ("url", "path"),
    [("", DEFAULT), ("file:///mnt/a", Path("/mnt/a")), ("/mnt/a", Path("/mnt/a")), ("a", Path("a"))],
)
def test_a_local_place_is_a_path_or_a_file_url(url, path):
    assert find_local(url, DEFAULT, "store.url") == path


def test_another_scheme_is_not_local():
    assert find_local("s3://films/objects", DEFAULT, "store.url") is None


@pytest.mark.parametrize("url", ["file://objects", "file://films/objects"])
@pytest.mark.parametrize(
    ("option", "open_place"),
    [
        ("store.url", lambda settings: open_store(settings.store, settings.data, None)),
        ("store.keyring", lambda settings: open_keyring(settings.store, settings.data)),
        ("audit.anchor", lambda settings: open_anchor(settings.audit, settings.data)),
    ],
)
def test_a_folder_in_place_of_the_host_is_named(tmp_path, url, option, open_place):
    """The first was ignored: the keys were next to what they encrypt. The second was /objects."""
    settings = with_values(Settings(), {"data": tmp_path, option: url})
    with pytest.raises(SettingsError, match="a path has three slashes") as refused:
        open_place(settings)
    assert (refused.value.option, list(tmp_path.iterdir())) == (option, [])
