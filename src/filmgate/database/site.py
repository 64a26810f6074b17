"""What all processes of an installation must agree on: the store and the keyring behind its database.

The first server records both. A process with another store or another keyring would fail jobs that the others
can render, or store clips where no other process finds them.
"""

import time
from collections.abc import Mapping
from typing import Protocol

import sqlalchemy as sa

from filmgate.database.engine import Database
from filmgate.database.schema import site
from filmgate.database.upserts import insert_into
from filmgate.errors import SettingsError
from filmgate.telemetry.logs import Log

log = Log("site")

_LOG_SECONDS = 60.0


class Identified(Protocol):
    """A store or a keyring."""

    @property
    def identity(self) -> str: ...


class Site:
    """The identities of the store and the keyring, by the name of their setting."""

    def __init__(self, database: Database, own: Mapping[str, str]) -> None:
        self._database = database
        self._own = dict(own)
        self._next_log_at = 0.0

    def record(self) -> None:
        """Record what is not recorded yet. Raises SettingsError if this process differs from the record."""
        rows = [{"name": name, "identity": identity} for name, identity in self._own.items()]
        with self._database.write() as connection:
            insert = insert_into(connection, site).on_conflict_do_nothing(index_elements=["name"])
            connection.execute(insert, rows)
        self.require()

    def adopt(self) -> None:
        """Record the store and the keyring of this process instead of what was recorded before."""
        with self._database.write() as connection:
            connection.execute(sa.delete(site))
        self.record()

    def differences(self) -> list[str]:
        """The settings whose store or keyring differs from the recorded one."""
        with self._database.read() as connection:
            recorded = {row.name: row.identity for row in connection.execute(sa.select(site))}
        return sorted(name for name, own in self._own.items() if recorded.get(name, own) != own)

    def require(self) -> None:
        """Raises SettingsError that names the setting that differs."""
        if differing := self.differences():
            raise SettingsError(
                f"{' and '.join(differing)} of this process differ from what is recorded for this database; "
                "use the server's value (or its `data`), or run `filmgate keys adopt` if you moved the "
                "objects or keys",
                option=differing[0],
            )

    def may_lease(self) -> bool:
        """Whether this process may lease jobs. Logs the settings that differ, at most once a minute."""
        differing = self.differences()
        if differing and time.monotonic() >= self._next_log_at:
            self._next_log_at = time.monotonic() + _LOG_SECONDS
            log.error(
                "leasing no jobs: the store or keyring settings differ from the installation's",
                reason=",".join(differing),
            )
        return not differing


def site_of(database: Database, store: Identified, keys: Identified) -> Site:
    """The site of a process with this store and this keyring."""
    return Site(database, {"store.url": store.identity, "store.keyring": keys.identity})
