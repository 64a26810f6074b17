"""The Waker port: wakes idle workers when a job can be leased.

A waker is best effort. A lost, duplicated or late wake-up changes when a worker looks at the database, never
what it finds there. No verb raises because the messaging service is down.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from filmgate.jobs import Failure, JobId, Lease
from filmgate.scheduling.base import Offer
from filmgate.scheduling.claims import Channel, ReadyJob


@dataclass(frozen=True, slots=True)
class Wakeup:
    """A reason to lease now. `job_id` names a job to try before fair share; `message` is the waker's own."""

    job_id: JobId | None = None
    message: object = None


class SweptQueue(Protocol):
    """What a waker needs from the queue to repair lost wake-ups."""

    def ready_jobs(self, limit: int) -> Mapping[Channel, Sequence[ReadyJob]]:
        """Jobs that can be leased now."""
        ...

    def fail_abandoned(self, job_id: JobId, failure: Failure) -> bool:
        """Fail a job unless it has ended or a worker holds it."""
        ...


class Waker(Protocol):
    """Wakes workers, and follows the leases that its wake-ups lead to."""

    def notify(self, job: ReadyJob) -> None:
        """A job can be leased. Called after the commit."""
        ...

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:
        """Block until there is a reason to lease, at most one interval, or until `is_stopping`."""
        ...

    def take(self, offer: Offer) -> Wakeup | None:
        """The reason for this worker to look at the database now; None when there is none."""
        ...

    def put_back(self, wakeup: Wakeup) -> None:
        """The database could not be reached: keep the wake-up for another try."""
        ...

    def leased(self, wakeup: Wakeup, offer: Offer, lease: Lease | None) -> None:
        """The wake-up led to this lease, or to none."""
        ...

    def renewed(self, lease: Lease) -> None:
        """The lease was renewed by a heartbeat."""
        ...

    def lost(self, lease: Lease) -> None:
        """The lease is no longer valid."""
        ...

    def ended(self, lease: Lease, retry_in: float | None) -> None:
        """The attempt ended; the job is final, or it can be leased again in `retry_in` seconds."""
        ...

    def returned(self, lease: Lease, job: ReadyJob, ready_in: float) -> None:
        """The worker handed the job back without using an attempt: it can be leased in `ready_in` seconds."""
        ...

    def sweep(self, queue: SweptQueue) -> None:
        """Repair lost wake-ups. Idempotent; any process may call it at any time."""
        ...

    def close(self) -> None:
        """Close connections. The waker is not used afterwards."""
        ...
