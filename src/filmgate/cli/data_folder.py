"""The option `--data`, and which database a command uses."""

from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from filmgate.database import Database
    from filmgate.settings import Settings

CHOOSE_OR_SERVE = "use --data, set FILMGATE_DATA, or run `filmgate serve` to create it"
Data = Annotated[Path | None, typer.Option(help="Data folder.  [default: the `data` setting]")]


def settings_with(data: Path | None, given: "Mapping[str, object]" = MappingProxyType({})) -> "Settings":
    """The settings with the values of options, by dotted key; None means that an option is not given."""
    from filmgate.settings import load_settings, with_values

    values = {key: value for key, value in {"data": data, **given}.items() if value is not None}
    return with_values(load_settings(), values) if values else load_settings()


def report_data_folder(settings: "Settings") -> None:
    """Print the data folder on stderr, so that nobody works on another one unknowingly."""
    is_needed = not settings.queue.url and not settings.data.is_dir()
    missing = " (does not exist yet; `filmgate serve` creates it)" if is_needed else ""
    typer.echo(f"data folder: {settings.data.absolute()}{missing}", err=True)


def require_data_folder(settings: "Settings", remedy: str = CHOOSE_OR_SERVE) -> None:
    """Raises UsageError if the folder does not exist: only `serve` and `generate` create one."""
    if not settings.data.is_dir():
        raise UsageError(f"there is no data folder {settings.data.absolute()}; {remedy}", option="--data")


def require_database(settings: "Settings") -> None:
    """Raises UsageError if there is no embedded database: a wrong folder has no jobs and no tenants."""
    from filmgate.database import DEFAULT_FILE

    if settings.queue.url:
        return
    require_data_folder(settings)
    if not (settings.data / DEFAULT_FILE).is_file():
        message = f"the folder {settings.data.absolute()} has no database {DEFAULT_FILE}; {CHOOSE_OR_SERVE}"
        raise UsageError(message, option="--data")


@contextmanager
def opened_database(settings: "Settings", *, may_create: bool = False) -> "Iterator[Database]":
    """The configured database, which must exist unless `may_create`; its place is printed at the end."""
    from filmgate.database import DEFAULT_FILE, open_database

    if not may_create:
        require_database(settings)
    elif not settings.queue.url:
        require_data_folder(settings)
    database = open_database(settings.queue, settings.data)
    try:
        yield database
    finally:
        database.close()
    # The query may contain a password too.
    url = database.url.set(drivername=database.url.get_backend_name(), query={})
    place = url.render_as_string(hide_password=True)
    typer.echo(f"database: {place if settings.queue.url else settings.data / DEFAULT_FILE}", err=True)
