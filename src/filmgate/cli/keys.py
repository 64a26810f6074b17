"""`filmgate keys`: the encryption keys of tenants, and the keyring that an installation uses."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import (
    Data,
    opened_database,
    report_data_folder,
    require_data_folder,
    settings_with,
)
from filmgate.cli.options import AsJson, read_tenant
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.settings import Settings
    from filmgate.store.keys.files import FileKeyring

Name = Annotated[str, typer.Argument(help="The tenant.", show_default=False)]

keys = typer.Typer(help="Rotate and rewrap tenant encryption keys.", no_args_is_help=True)


@keys.command("rotate")
def rotate_key(name: Name, data: Data = None, is_json: AsJson = False) -> None:
    """Create a new encryption key for a tenant. Data encrypted with older keys stays readable."""
    tenant_id = read_tenant(name, "NAME")
    settings = settings_with(data)
    keyring = open_file_keyring(settings)
    report_data_folder(settings)
    keyring.rotate(tenant_id)
    echo = json.dumps({"tenant": name, "rotated": True})
    typer.echo(echo if is_json else f"{name} has a new key; run `filmgate keys rewrap {name}` in two hours")


@keys.command("rewrap")
def rewrap_keys(name: Name, data: Data = None, is_json: AsJson = False) -> None:
    """Encrypt a tenant's data keys with its current key. Deletes older keys two hours after a rotation."""
    from filmgate.database.site import site_of
    from filmgate.scheduling.rewrapping import Rewrapping
    from filmgate.store import open_store
    from filmgate.store.keys.data_keys import DataKeys

    tenant_id = read_tenant(name, "NAME")
    settings = settings_with(data)
    keyring = open_file_keyring(settings)
    with opened_database(settings) as database:
        store = open_store(settings.store, settings.data, DataKeys(keyring))
        site_of(database, store, keyring).require()  # in another store, the objects would lose their old keys
        done = Rewrapping(database, store, keyring).run(tenant_id)
    text = f"{done.prompts} prompts and {done.objects} objects rewrapped, {done.pruned_keys} old keys deleted"
    typer.echo(json.dumps(asdict(done)) if is_json else text)


def open_file_keyring(settings: "Settings") -> "FileKeyring":
    """Raises UsageError for KMS, where AWS rotates keys."""
    from filmgate.store.keys import open_keyring
    from filmgate.store.keys.files import FileKeyring

    if settings.store.keyring.startswith("kms:"):
        raise UsageError(
            "AWS rotates KMS keys and keeps their old versions; enable automatic rotation of the key",
            option="store.keyring",
        )
    if not settings.store.keyring:
        require_data_folder(settings)
    keyring = open_keyring(settings.store, settings.data)
    assert isinstance(keyring, FileKeyring)
    return keyring


@keys.command("adopt")
def adopt_keyring(data: Data = None) -> None:
    """Record the configured store and keyring as the ones this installation uses.

    Run it after you moved objects or keys. Until then, processes with the new settings lease no jobs.
    """
    from filmgate.database.site import site_of
    from filmgate.store import open_store
    from filmgate.store.keys import open_keys

    settings = settings_with(data)
    with opened_database(settings) as database:
        data_keys = open_keys(settings.store, settings.data)
        store = open_store(settings.store, settings.data, data_keys)
        site_of(database, store, data_keys).adopt()
    typer.echo("the installation now uses the configured store and keyring")
