"""`filmgate keys`: the encryption keys of tenants, and the keyring that an installation uses."""

import json
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import (
    Data,
    opened_database,
    report_data_folder,
    require_data_folder,
    settings_with,
)
from filmgate.cli.options import AsJson
from filmgate.errors import UsageError
from filmgate.jobs import TenantId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from filmgate.settings import Settings
    from filmgate.store.keys.files import FileKeyring

Name = Annotated[str, typer.Argument(help="The tenant.", show_default=False)]

keys = typer.Typer(help="Encryption keys of tenants.", no_args_is_help=True)


@keys.command("rotate")
def rotate_key(name: Name, data: Data = None, is_json: AsJson = False) -> None:
    """Give a tenant a new encryption key. What older keys encrypted stays readable."""
    with opened_keyring(data) as (settings, keyring):
        report_data_folder(settings)
        keyring.rotate(TenantId(name))
    echo = json.dumps({"tenant": name, "rotated": True})
    typer.echo(echo if is_json else f"{name} has a new key; run `filmgate keys rewrap {name}` in two hours")


@keys.command("rewrap")
def rewrap_keys(name: Name, data: Data = None, is_json: AsJson = False) -> None:
    """Wrap all data keys of a tenant with its current key. Deletes older keys two hours after a rotation."""
    from filmgate.scheduling.rewrapping import Rewrapping
    from filmgate.store import open_store
    from filmgate.store.keys.data_keys import DataKeys

    with opened_keyring(data) as (settings, keyring), opened_database(settings) as database:
        store = open_store(settings.store, settings.data, DataKeys(keyring))
        done = Rewrapping(database, store, keyring).run(TenantId(name))
    text = f"{done.prompts} prompts and {done.objects} objects rewrapped, {done.pruned_keys} old keys deleted"
    typer.echo(json.dumps(asdict(done)) if is_json else text)


@contextmanager
def opened_keyring(data: Path | None) -> "Iterator[tuple[Settings, FileKeyring]]":
    """The settings and their keyring. Raises UsageError for KMS, where AWS rotates keys."""
    from filmgate.store.keys import open_keyring
    from filmgate.store.keys.files import FileKeyring

    settings = settings_with(data)
    if settings.store.keyring.startswith("kms:"):
        raise UsageError(
            "AWS rotates KMS keys and keeps their old versions; enable automatic rotation of the key",
            option="store.keyring",
        )
    if not settings.store.keyring:
        require_data_folder(settings)
    keyring = open_keyring(settings.store, settings.data)
    assert isinstance(keyring, FileKeyring)
    yield settings, keyring


@keys.command("adopt")
def adopt_keyring(data: Data = None) -> None:
    """Record the store and the keyring of these settings as those of the installation.

    Needed after objects or keys were moved; until then, processes with the new settings take no jobs.
    """
    from filmgate.database.site import Site
    from filmgate.store import open_store
    from filmgate.store.keys import open_keys

    settings = settings_with(data)
    with opened_database(settings) as database:
        data_keys = open_keys(settings.store, settings.data)
        store = open_store(settings.store, settings.data, data_keys)
        Site(database, {"store.url": store.identity, "store.keyring": data_keys.identity}).adopt()
    typer.echo("the installation now uses the store and the keyring of these settings")
