"""Doctor check of an installation: whether store and keyring are those that its database belongs to."""

from collections.abc import Iterator

import sqlalchemy as sa

from filmgate.database import Database, open_database
from filmgate.database.schema import jobs
from filmgate.database.site import Site
from filmgate.errors import FilmgateError, SettingsError
from filmgate.scheduling.rows import open_prompt
from filmgate.settings import Settings
from filmgate.store import open_store
from filmgate.store.keys import open_keys
from filmgate.store.keys.data_keys import Sealer
from filmgate.telemetry.findings import Finding, Verdict

_MAX_TENANTS = 20


def examine_site(settings: Settings) -> Iterator[Finding]:
    """Findings about an existing installation; empty if it has no database yet."""
    if not settings.queue.url and not (settings.data / "filmgate.db").exists():
        return
    try:
        database = open_database(settings.queue, settings.data)
    except FilmgateError as exc:
        yield Finding("database", Verdict.FAIL, str(exc), "start the database, or correct queue.url")
        return
    try:
        yield _check_identity(database, settings)
        yield from _check_keys(database, settings)
    except FilmgateError as exc:
        yield Finding("installation", Verdict.FAIL, str(exc), "correct store.url, store.keyring or data")
    finally:
        database.close()


def _check_identity(database: Database, settings: Settings) -> Finding:
    keys = open_keys(settings.store, settings.data)
    store = open_store(settings.store, settings.data, keys)
    try:
        Site(database, {"store.url": store.identity, "store.keyring": keys.identity}).require()
    except SettingsError as exc:
        return Finding("installation", Verdict.FAIL, str(exc), f"set {exc.option} as on the server")
    return Finding("installation", Verdict.OK, "store and keyring are those of the database")


def _check_keys(database: Database, settings: Settings) -> Iterator[Finding]:
    """Open the newest prompt of each tenant: the proof that its key can be used here."""
    newest = sa.select(sa.func.max(jobs.c.seq)).group_by(jobs.c.tenant_id).limit(_MAX_TENANTS)
    with database.read() as connection:
        rows = connection.execute(sa.select(jobs).where(jobs.c.seq.in_(newest))).mappings().all()
    sealer = Sealer(open_keys(settings.store, settings.data))
    for row in rows:
        try:
            open_prompt(sealer, row)
        except FilmgateError as exc:
            remedy = "set store.keyring (or `data`) as on the server, and check the permissions of the key"
            yield Finding(f"key of {row['tenant_id']}", Verdict.FAIL, str(exc), remedy)
