"""Checks that the weights in memory and the clips of a device have not changed.

Golden clips, in the database, say what the canary of a model must look like on one kind of device.
"""

from dataclasses import asdict
from typing import Protocol

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import golden_clips
from filmgate.database.upserts import insert_into
from filmgate.errors import DecodeError, DeviceDrifted
from filmgate.pipeline.canary import GoldenClip, describe_setup, make_golden, measure_drift
from filmgate.pipeline.loading.loader import VideoModel
from filmgate.pipeline.loading.weight_sums import WeightSums, find_changes, sum_weights
from filmgate.pipeline.render import Renderer
from filmgate.telemetry.logs import Log
from filmgate.worker.metrics import WorkerMetrics

log = Log("canary")


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


class SelfCheck:
    """Compares the weights with their sums at load time, and a canary clip with the golden clip."""

    def __init__(self, goldens: GoldenClips, metrics: WorkerMetrics) -> None:
        self._goldens = goldens
        self._metrics = metrics
        self._sums: dict[str, WeightSums] = {}

    def remember(self, name: str, model: VideoModel) -> None:
        """Take the sums of a model that was just loaded."""
        self._sums[name] = sum_weights(model.pipe)

    def run(self, name: str, version: str, model: VideoModel, renderer: Renderer) -> None:
        """Check one loaded model. Raises DeviceDrifted, and DecodeError for an incomplete canary."""
        renderer.use_adapters(None)  # the last job may have had one
        if changed := find_changes(self._sums[name], sum_weights(model.pipe)):
            self._metrics.canary_checked(name, None, has_passed=False)
            raise _drifted(name, f"the weights in memory have changed: {', '.join(changed)}")
        setup = describe_setup(model)
        golden = self._goldens.find(version, setup)
        if golden is None:
            golden = self._goldens.keep(version, setup, make_golden(model, renderer))
        difference = measure_drift(golden, model, renderer)
        has_passed = difference <= golden.tolerance
        self._metrics.canary_checked(name, difference, has_passed=has_passed)
        if not has_passed:
            limit = f"the limit is {golden.tolerance:.1f}"
            raise _drifted(
                name, f"the canary differs from the golden clip by {difference:.1f} levels; {limit}"
            )
        log.info("the canary check passed", model=name, relative_error=round(difference / 255, 6))

    def run_again(self, name: str, version: str, model: VideoModel, renderer: Renderer) -> None:
        """Check a model between jobs: any wrong clip means that something has changed."""
        try:
            self.run(name, version, model, renderer)
        except DecodeError as exc:
            self._metrics.canary_checked(name, None, has_passed=False)
            raise _drifted(name, str(exc)) from exc


def _drifted(name: str, reason: str) -> DeviceDrifted:
    return DeviceDrifted(
        f"{name}: {reason}. A restart loads the weights again; if that does not help, replace the GPU"
    )


def _select(connection: sa.Connection, version: str, setup: str) -> GoldenClip | None:
    own = sa.and_(golden_clips.c.version == version, golden_clips.c.setup == setup)
    columns = (golden_clips.c.frames, golden_clips.c.sha256, golden_clips.c.tolerance)
    row = connection.execute(sa.select(*columns).where(own)).one_or_none()
    return GoldenClip(row.frames, row.sha256, row.tolerance) if row is not None else None
