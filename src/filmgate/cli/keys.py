"""`filmgate keys`: the encryption keys of tenants, and the keyring that an installation uses."""

import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.errors import UsageError
from filmgate.jobs import TenantId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from filmgate.settings import Settings
    from filmgate.store.keys.files import FileKeyring

Name = Annotated[str, typer.Argument(help="The tenant.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

keys = typer.Typer(help="Encryption keys of tenants.", no_args_is_help=True)


@keys.command("rotate")
def rotate_key(name: Name, is_json: AsJson = False) -> None:
    """Give a tenant a new encryption key. What older keys encrypted stays readable."""
    with opened_keyring() as (_, keyring):
        keyring.rotate(TenantId(name))
    echo = json.dumps({"tenant": name, "rotated": True})
    typer.echo(echo if is_json else f"{name} has a new key; run `filmgate keys rewrap {name}` in two hours")


@keys.command("rewrap")
def rewrap_keys(name: Name, is_json: AsJson = False) -> None:
    """Wrap all data keys of a tenant with its current key. Deletes older keys two hours after a rotation."""
    from filmgate.database import open_database
    from filmgate.scheduling.rewrapping import Rewrapping
    from filmgate.store import open_store
    from filmgate.store.keys.cache import DataKeys

    with opened_keyring() as (settings, keyring):
        database = open_database(settings.queue, settings.data)
        try:
            store = open_store(settings.store, settings.data, DataKeys(keyring))
            done = Rewrapping(database, store, keyring).run(TenantId(name))
        finally:
            database.close()
    text = f"{done.prompts} prompts and {done.objects} objects rewrapped, {done.pruned_keys} old keys deleted"
    typer.echo(json.dumps(asdict(done)) if is_json else text)


@contextmanager
def opened_keyring() -> "Iterator[tuple[Settings, FileKeyring]]":
    """The settings and their keyring. Raises UsageError for KMS, where AWS rotates keys."""
    from filmgate.settings import load_settings
    from filmgate.store.keys import open_keyring
    from filmgate.store.keys.files import FileKeyring

    settings = load_settings()
    if settings.store.keyring.startswith("kms:"):
        raise UsageError(
            "AWS rotates KMS keys and keeps their old versions; enable automatic rotation of the key",
            option="store.keyring",
        )
    keyring = open_keyring(settings.store, settings.data)
    assert isinstance(keyring, FileKeyring)
    yield settings, keyring


@keys.command("adopt")
def adopt_keyring() -> None:
    """Record the store and the keyring of these settings as those of the installation.

    Needed after objects or keys were moved; until then, processes with the new settings take no jobs.
    """
    from filmgate.database import open_database
    from filmgate.database.site import Site
    from filmgate.settings import load_settings
    from filmgate.store import open_store
    from filmgate.store.keys import open_keys

    settings = load_settings()
    database = open_database(settings.queue, settings.data)
    try:
        data_keys = open_keys(settings.store, settings.data)
        store = open_store(settings.store, settings.data, data_keys)
        Site(database, {"store.url": store.identity, "store.keyring": data_keys.identity}).adopt()
    finally:
        database.close()
    typer.echo("the store and the keyring of these settings are those of the installation")
