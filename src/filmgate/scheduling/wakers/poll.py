"""Polling: an idle worker looks for jobs at a fixed interval, and on SQLite after every commit."""

from collections.abc import Callable

from filmgate.database.commits import CommitSignal
from filmgate.jobs import Lease
from filmgate.scheduling.base import Offer
from filmgate.scheduling.claims import ReadyJob
from filmgate.scheduling.wakers.base import SweptQueue, Wakeup


class PollWaker:
    """Workers poll the database; no messages are sent."""

    def __init__(self, commits: CommitSignal, poll_seconds: float) -> None:
        self._commits = commits
        self._poll_seconds = poll_seconds

    def notify(self, job: ReadyJob) -> None:
        pass

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:  # noqa: ARG002
        self._commits.wait(self._poll_seconds, is_stopping)

    def take(self, offer: Offer) -> Wakeup | None:  # noqa: ARG002
        return Wakeup()

    def put_back(self, wakeup: Wakeup) -> None:
        pass

    def leased(self, wakeup: Wakeup, offer: Offer, lease: Lease | None) -> None:
        pass

    def renewed(self, lease: Lease) -> None:
        pass

    def lost(self, lease: Lease) -> None:
        pass

    def ended(self, lease: Lease, retry_in: float | None) -> None:
        pass

    def returned(self, lease: Lease, job: ReadyJob, ready_in: float) -> None:
        pass

    def sweep(self, queue: SweptQueue) -> None:
        pass

    def close(self) -> None:
        self._commits.close()
