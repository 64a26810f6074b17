"""Golden clips in the database: what the canary of a model must look like on one kind of device."""

from dataclasses import asdict
from typing import Protocol

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import golden_clips
from filmgate.database.upserts import insert_into
from filmgate.pipeline.canary import GoldenClip

_COLUMNS = (golden_clips.c.frames, golden_clips.c.sha256, golden_clips.c.tolerance)


class GoldenClips(Protocol):
    """Golden clips by the version of the model and the setup of the device."""

    def find(self, version: str, setup: str) -> GoldenClip | None: ...

    def keep(self, version: str, setup: str, clip: GoldenClip) -> GoldenClip:
        """Keep the clip, unless there is one already. Returns the one that is kept."""
        ...


class MemoryGoldenClips:
    """Golden clips of one process."""

    def __init__(self) -> None:
        self._clips: dict[tuple[str, str], GoldenClip] = {}

    def find(self, version: str, setup: str) -> GoldenClip | None:
        return self._clips.get((version, setup))

    def keep(self, version: str, setup: str, clip: GoldenClip) -> GoldenClip:
        return self._clips.setdefault((version, setup), clip)


class SqlGoldenClips:
    """Golden clips of an installation: a new GPU is compared with the GPUs before it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, version: str, setup: str) -> GoldenClip | None:
        with self._database.read() as connection:
            return _select(connection, version, setup)

    def keep(self, version: str, setup: str, clip: GoldenClip) -> GoldenClip:
        row = asdict(clip) | {"version": version, "setup": setup}
        with self._database.write() as connection:
            connection.execute(insert_into(connection, golden_clips).values(row).on_conflict_do_nothing())
            return _select(connection, version, setup) or clip

    def delete(self, version: str) -> int:
        """Delete the golden clips of all versions that start with this. Returns how many."""
        own = golden_clips.c.version.startswith(version, autoescape=True)
        with self._database.write() as connection:
            deleted = connection.execute(sa.delete(golden_clips).where(own))
        return deleted.rowcount


def _select(connection: sa.Connection, version: str, setup: str) -> GoldenClip | None:
    own = sa.and_(golden_clips.c.version == version, golden_clips.c.setup == setup)
    row = connection.execute(sa.select(*_COLUMNS).where(own)).one_or_none()
    return GoldenClip(row.frames, row.sha256, row.tolerance) if row is not None else None
