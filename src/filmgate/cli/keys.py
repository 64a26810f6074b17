"""`filmgate keys`: the encryption keys of tenants, and the keyring that an installation uses."""

import typer

keys = typer.Typer(help="Encryption keys of tenants.", no_args_is_help=True)


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
