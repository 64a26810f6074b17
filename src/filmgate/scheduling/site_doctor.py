"""Checks that the store and the keyring of an installation are the ones that its database belongs to."""

from collections.abc import Iterator

import sqlalchemy as sa

from filmgate.database import Database, open_database
from filmgate.database.schema import jobs
from filmgate.database.site import site_of
from filmgate.errors import FilmgateError, SettingsError
from filmgate.jobs import TenantId
from filmgate.scheduling.rows import open_prompt
from filmgate.settings import Settings
from filmgate.store import open_store
from filmgate.store.keys import open_keys
from filmgate.store.keys.data_keys import DataKeys, Sealer
from filmgate.telemetry.findings import Finding, Verdict

_MAX_TENANTS = 20


def examine_site(settings: Settings) -> Iterator[Finding]:
    """Findings about an existing installation; empty if it has no database yet."""
    if not settings.queue.url and not (settings.data / "filmgate.db").exists():
        return
    try:
        database = open_database(settings.queue, settings.data)
    except FilmgateError as exc:
        message, separator, remedy = str(exc).rpartition("; ")
        if not separator:
            message, remedy = str(exc), "start the database, or correct queue.url"
        yield Finding("database", Verdict.FAIL, message, remedy)
        return
    try:
        keys = open_keys(settings.store, settings.data)
        yield _check_identity(database, settings, keys)
        remedy = "set store.keyring (or `data`) as on the server, and check the permissions of the key"
        for tenant_id, error in find_unreadable(database, Sealer(keys), _MAX_TENANTS).items():
            yield Finding(f"key of {tenant_id}", Verdict.FAIL, str(error), remedy)
    except FilmgateError as exc:
        yield Finding("installation", Verdict.FAIL, str(exc), "correct store.url, store.keyring or data")
    finally:
        database.close()


def _check_identity(database: Database, settings: Settings, keys: DataKeys) -> Finding:
    store = open_store(settings.store, settings.data, keys)
    try:
        site_of(database, store, keys).require()
    except SettingsError as exc:
        return Finding("installation", Verdict.FAIL, str(exc), f"set {exc.option} as on the server")
    return Finding("installation", Verdict.OK, "the store and the keyring belong to the database")


def find_unreadable(
    database: Database, sealer: Sealer, max_tenants: int | None = None
) -> dict[TenantId, FilmgateError]:
    """Open the newest prompt of each tenant. Returns the tenants whose key cannot be used here, and why."""
    newest = sa.select(sa.func.max(jobs.c.seq)).group_by(jobs.c.tenant_id).limit(max_tenants)
    with database.read() as connection:
        rows = connection.execute(sa.select(jobs).where(jobs.c.seq.in_(newest))).mappings().all()
    found = {}
    for row in rows:
        try:
            open_prompt(sealer, row)
        except FilmgateError as exc:
            found[TenantId(row["tenant_id"])] = exc
    return found
