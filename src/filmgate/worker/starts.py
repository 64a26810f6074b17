"""How long a worker took to start and to load models, recorded in the database."""

import os
import time
from functools import partial
from pathlib import Path

from filmgate.database import Database
from filmgate.scheduling.durations import COLD_START, MODEL_LOAD, record_start
from filmgate.telemetry.periodic import attempt
from filmgate.worker.base import Runner
from filmgate.worker.metrics import WorkerMetrics

_IMPORTED_AT = time.monotonic()
_START_FIELD = 19  # of /proc/self/stat, counted from the field behind the process name


class StartRecorder:
    """Records starts. If the database does not answer, the worker continues without the record."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_load(self, model: str, version: str, seconds: float) -> None:
        """A model was loaded onto the device."""
        attempt("record a load", partial(record_start, self._database, MODEL_LOAD, model, version, seconds))

    def record_cold_start(self, runner: Runner, metrics: WorkerMetrics) -> None:
        """The worker can lease its first job."""
        seconds, model = process_age(), runner.models[0]
        metrics.ready(seconds)
        version = next((card.version for card in runner.cards() if card.name == model), "")
        record = partial(record_start, self._database, COLD_START, model, version, seconds)
        attempt("record a cold start", record)


def process_age() -> float:
    """Seconds since this process was started; since this module was imported where /proc is missing."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return time.monotonic() - _IMPORTED_AT
    return uptime - int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
