"""Station 4: who works on what. `base` has the ports; SQLite and PostgreSQL share one table design, and SQS
can wake the workers of either.
"""

from typing import TYPE_CHECKING

from filmgate.database import Database
from filmgate.scheduling.base import JobBook, JobQueue
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys

if TYPE_CHECKING:
    from filmgate.providers.invocations import SqlInvocations


def open_queue(database: Database, keys: DataKeys, settings: QueueSettings) -> JobQueue:
    """The queue in this database; with `queue.delivery` its workers are woken by messages."""
    if settings.delivery:
        from filmgate.scheduling.wakers.sqs import SqsQueue
        from filmgate.scheduling.wakers.sqs_queues import PostOffice

        return SqsQueue(database, keys, settings, PostOffice(settings))
    from filmgate.scheduling.queue import SqlQueue

    return SqlQueue(database, keys, settings)


def open_book(database: Database, keys: DataKeys) -> JobBook:
    """The job records in this database."""
    from filmgate.scheduling.reader import SqlBook

    return SqlBook(database, keys)


def open_invocations(database: Database) -> "SqlInvocations":
    """The provider's side of jobs in this database."""
    from filmgate.providers.invocations import SqlInvocations

    return SqlInvocations(database)
