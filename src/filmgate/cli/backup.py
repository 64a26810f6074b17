"""`filmgate backup` and `filmgate restore`: an installation on SQLite, with the keys apart."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.data_folder import (
    Data,
    report_data_folder,
    require_data_folder,
    require_database,
    settings_with,
)
from filmgate.cli.options import AsJson

COPY_OBJECTS_FIRST = (
    "copy the objects of the backup into its folder `objects` first, or create an empty folder with `mkdir`"
)


def back_up_installation(
    target: Annotated[Path, typer.Argument(help="New folder for the backup.", show_default=False)],
    keys: Annotated[
        Path | None, typer.Option(help="New folder for the tenants' keys, in another place.")
    ] = None,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Copy the database while the service runs, list the objects it uses, and copy the keys separately."""
    from filmgate.maintenance.backup import back_up

    settings = settings_with(data)
    require_database(settings)
    report_data_folder(settings)
    done = back_up(settings, target, keys)
    if keys is None and not settings.store.keyring.startswith("kms:"):
        typer.echo("the keys are not in this backup; without them it cannot be read: use --keys", err=True)
    text = f"{done.jobs} jobs backed up; they refer to {len(done.objects)} objects, which you copy yourself"
    typer.echo(json.dumps(asdict(done)) if is_json else text)


def restore_installation(
    source: Annotated[Path, typer.Argument(help="Folder of the backup.", show_default=False)],
    keys: Annotated[Path | None, typer.Option(help="Folder with the tenants' keys.")] = None,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Restore a backup into a data folder that has no database, and check objects and prompts.

    Copy the objects first. Exits with 1 if an object or a key is missing.
    """
    from filmgate.maintenance.backup import restore

    settings = settings_with(data)
    if not settings.queue.url:
        require_data_folder(settings, COPY_OBJECTS_FIRST)
    done = restore(settings, source, keys)
    report_data_folder(settings)
    if is_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(f"{done.jobs} jobs restored, {done.ended_leases} of them are rendered again")
        for name in done.missing_objects:
            typer.echo(f"missing, damaged or without its key: {name}", err=True)
        for tenant_id in done.unreadable_tenants:
            typer.echo(f"the prompts of {tenant_id} cannot be read: its key is missing", err=True)
    if done.missing_objects or done.unreadable_tenants:
        raise typer.Exit(1)
