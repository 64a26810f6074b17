"""How long a worker took to start and to load models, recorded in the database.

If the database does not answer, the worker continues without the record.
"""

import os
import time
from functools import partial
from pathlib import Path

from filmgate.database import Database
from filmgate.scheduling.durations import COLD_START, MODEL_LOAD, record_start
from filmgate.telemetry.periodic import attempt
from filmgate.worker.base import Runner

_IMPORTED_AT = time.monotonic()
_START_FIELD = 19  # of /proc/self/stat, counted from the field behind the process name


def record_load(database: Database, model: str, version: str, seconds: float) -> None:
    """A model was loaded onto the device."""
    attempt("record a load", partial(record_start, database, MODEL_LOAD, model, version, seconds))


def record_cold_start(database: Database, runner: Runner) -> float:
    """The worker can lease its first job. Returns the seconds since the process was started."""
    seconds, model = process_age(), runner.models[0]
    version = next((card.version for card in runner.cards() if card.name == model), "")
    attempt("record a cold start", partial(record_start, database, COLD_START, model, version, seconds))
    return seconds


def process_age() -> float:
    """Seconds since this process was started; since this module was imported where /proc is missing."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except OSError:
        return time.monotonic() - _IMPORTED_AT
    return uptime - int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
