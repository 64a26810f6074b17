"""PostgreSQL LISTEN/NOTIFY: an enqueue wakes idle workers immediately, and polling becomes rare."""

import time
from collections.abc import Callable
from typing import Any

import psycopg

from filmgate.database import Database
from filmgate.database.commits import CommitSignal
from filmgate.errors import QueueUnavailable
from filmgate.jobs import Lease
from filmgate.scheduling.base import Offer
from filmgate.scheduling.claims import ReadyJob
from filmgate.scheduling.wakers.poll import PollWaker
from filmgate.settings import QueueSettings
from filmgate.telemetry.logs import Log

log = Log("queue")

_CHANNEL = "filmgate_jobs"
# How often a listening worker checks whether it should stop.
_STOP_CHECK_SECONDS = 0.2


class NotifyWaker(PollWaker):
    """Wakes every listening worker; the lease decides which of them gets the job.

    Retries and lost leases send no notification: workers find them when `queue.wait_seconds` are over.
    """

    def __init__(self, database: Database, settings: QueueSettings) -> None:
        super().__init__(CommitSignal(database), settings.wait_seconds)
        self._database = database
        self._listener: psycopg.Connection[Any] | None = None

    def notify(self, job: ReadyJob) -> None:
        try:
            with self._database.write(is_durable=False) as connection:
                connection.exec_driver_sql(f"NOTIFY {_CHANNEL}")
        except QueueUnavailable as exc:
            log.warning(
                "the notification was not sent; workers find the job by polling",
                code=exc.code,
                job_id=job.job_id,
            )

    def returned(self, lease: Lease, job: ReadyJob, ready_in: float) -> None:  # noqa: ARG002
        if not ready_in:
            self.notify(job)

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:
        try:
            self._listen(is_stopping)
        except (psycopg.Error, QueueUnavailable) as exc:
            self.close()
            log.warning("the notifications were interrupted; polling", error=exc)
            super().wait(offer, is_stopping)

    def _listen(self, is_stopping: Callable[[], bool]) -> None:
        if self._listener is None:
            self._listener = self._connect()
            return  # a job may have been enqueued before the LISTEN: look once
        ends_at = time.monotonic() + self._poll_seconds
        while not is_stopping() and time.monotonic() < ends_at:
            if any(True for _ in self._listener.notifies(timeout=_STOP_CHECK_SECONDS, stop_after=1)):
                return

    def _connect(self) -> psycopg.Connection[Any]:
        """A connection outside the pool: it stays open for as long as the worker runs."""
        connection: psycopg.Connection[Any] = self._database.open_apart()
        connection.autocommit = True
        connection.execute(f"LISTEN {_CHANNEL}")
        return connection

    def close(self) -> None:
        super().close()
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
