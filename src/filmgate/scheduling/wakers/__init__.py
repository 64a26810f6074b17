"""Wakes idle workers when there are new jobs: polling, PostgreSQL NOTIFY or SQS. `base` has the port."""

from typing import TYPE_CHECKING

from filmgate.database.commits import CommitSignal
from filmgate.errors import SettingsError
from filmgate.scheduling.wakers.poll import PollWaker
from filmgate.settings import QueueSettings

if TYPE_CHECKING:
    from filmgate.database import Database
    from filmgate.scheduling.wakers.base import Waker


def open_waker(settings: QueueSettings, database: "Database") -> "Waker":
    """The waker of `queue.waker`: poll, notify, or the address of an SQS queue."""
    match settings.waker:
        case "poll":
            return PollWaker(CommitSignal(database), settings.poll_seconds)
        case "notify":
            if database.is_sqlite:
                raise SettingsError("notify needs PostgreSQL in queue.url", option="queue.waker")
            from filmgate.scheduling.wakers.notify import NotifyWaker

            return NotifyWaker(database, settings)
        case _:
            from filmgate.scheduling.wakers.sqs import SqsWaker
            from filmgate.scheduling.wakers.sqs_queues import SqsQueues

            return SqsWaker(SqsQueues(settings), settings, CommitSignal(database))
