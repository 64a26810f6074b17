"""Package 3 on the request path: decides when and where each job runs. `base` has the ports."""

from collections.abc import Callable

from filmgate.database import Database
from filmgate.scheduling.base import JobReader
from filmgate.scheduling.queue import SqlQueue
from filmgate.scheduling.reader import SqlJobReader
from filmgate.scheduling.wakers import open_waker
from filmgate.settings import QueueSettings
from filmgate.store.keys.data_keys import DataKeys


def open_queue(
    database: Database,
    keys: DataKeys,
    settings: QueueSettings,
    may_lease: Callable[[], bool] = lambda: True,
    usd_per_gpu_hour: float = 0.0,
) -> SqlQueue:
    """The queue in this database, with the waker of `queue.waker`. Every lease checks `may_lease` first.

    The price of a GPU-hour is for the cost in the audit log.
    """
    return SqlQueue(database, keys, settings, open_waker(settings, database), may_lease, usd_per_gpu_hour)


def open_reader(database: Database, keys: DataKeys) -> JobReader:
    """The job records in this database."""
    return SqlJobReader(database, keys)
