"""Station 4: who works on what. `base` has the ports; SQLite and PostgreSQL share one table design, and SQS
can wake the workers of either.
"""

from typing import TYPE_CHECKING

from filmgate.database import Database
from filmgate.keyring.base import Keyring
from filmgate.queue.base import JobBook, JobQueue
from filmgate.settings import QueueSettings

if TYPE_CHECKING:
    from filmgate.queue.invocations import SqlInvocations


def open_queue(database: Database, keyring: Keyring, settings: QueueSettings) -> JobQueue:
    """The queue in this database; with `queue.delivery` its workers are woken by messages."""
    if settings.delivery:
        from filmgate.queue.mailbox import PostOffice
        from filmgate.queue.sqs import SqsQueue

        return SqsQueue(database, keyring, settings, PostOffice(settings))
    from filmgate.queue.sql import SqlQueue

    return SqlQueue(database, keyring, settings)


def open_book(database: Database, keyring: Keyring) -> JobBook:
    """The job records in this database."""
    from filmgate.queue.book import SqlBook

    return SqlBook(database, keyring)


def open_invocations(database: Database) -> "SqlInvocations":
    """The provider's side of jobs in this database."""
    from filmgate.queue.invocations import SqlInvocations

    return SqlInvocations(database)
