"""Polling: an idle worker looks at the database at a fixed interval."""

import time
from collections.abc import Callable

from filmgate.jobs import Lease
from filmgate.scheduling.base import Offer
from filmgate.scheduling.ready import ReadyJob
from filmgate.scheduling.wakers.base import SweptQueue, Wakeup

# How often a waiting worker checks whether it should stop.
STOP_CHECK_SECONDS = 0.2


class PollWaker:
    """Every look at the database is a good one, and no job needs a message."""

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds

    def notify(self, job: ReadyJob) -> None:
        pass

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:  # noqa: ARG002
        ends_at = time.monotonic() + self._poll_seconds
        while not is_stopping() and (left := ends_at - time.monotonic()) > 0:
            time.sleep(min(left, STOP_CHECK_SECONDS))

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

    def returned(self, lease: Lease, job: ReadyJob) -> None:
        pass

    def sweep(self, queue: SweptQueue) -> None:
        pass

    def close(self) -> None:
        pass
