"""SQS wakes workers: one message per job, kept invisible while the job is leased and deleted when it ends.

The database holds jobs, fences and shares; the lease decides which job a worker gets. docs/adr/0048 has the
reasons.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from filmgate.database.commits import CommitSignal
from filmgate.errors import WakerUnavailable
from filmgate.jobs import Failure, JobId, Lease, Reason
from filmgate.scheduling.base import Offer
from filmgate.scheduling.claims import Channel, ReadyJob
from filmgate.scheduling.wakers.base import SweptQueue, Wakeup
from filmgate.scheduling.wakers.poll import PollWaker
from filmgate.scheduling.wakers.sqs_queues import Message, SqsQueue, SqsQueues
from filmgate.settings import QueueSettings
from filmgate.telemetry.logs import Log

log = Log("queue")

# The visibility of a message is renewed this often per lease, however often heartbeats are sent.
_RENEWALS_PER_LEASE = 3
# After a failed send no other is tried for this long: an outage of SQS must not slow requests down.
_PAUSE_SECONDS = 5.0
_MAX_SENT_PER_SWEEP = 500
_MAX_DEAD_PER_SWEEP = 100
_DEAD_VISIBILITY_SECONDS = 30.0
_ABANDONED = Failure(Reason.WORKER_LOST, "the job was delivered repeatedly and no worker finished it")


@dataclass(slots=True)
class _Held:
    """A lease of this process and the message that led to it, if any."""

    message: Message | None
    renewed_at: float


class SqsWaker:
    """Wake-ups as SQS messages. When SQS is down, workers poll the database."""

    def __init__(self, queues: SqsQueues, settings: QueueSettings, commits: CommitSignal) -> None:
        self._queues = queues
        self._settings = settings
        self._poll = PollWaker(commits, settings.poll_seconds)
        self._held: dict[tuple[JobId, int], _Held] = {}
        self._guard = threading.Lock()
        self._channels: set[Channel] = set()
        self._pending: Message | None = None
        self._has_waited = False
        self._sends_from = 0.0
        self._next_look_at = 0.0
        # The end of a job may allow its tenant's next one: look once before waiting for a message.
        self._is_look_due = True

    def notify(self, job: ReadyJob) -> None:
        self._channels.add((job.route, job.model))
        if time.monotonic() < self._sends_from:
            return
        try:
            self._queue_of(job).send([(job, f"{job.job_id}-{job.fence}")])
        except WakerUnavailable as exc:
            self._sends_from = time.monotonic() + _PAUSE_SECONDS
            log.warning("a wake-up was not sent; the sweep sends it", code=exc.code, job_id=job.job_id)

    def wait(self, offer: Offer, is_stopping: Callable[[], bool]) -> None:
        if offer.tenants:
            self._poll.wait(offer, is_stopping)
            return
        if is_stopping() or self._is_look_due or self._pending is not None:
            return
        try:
            self._pending = self._receive(offer, self._settings.wait_seconds)
            self._has_waited = True
        except WakerUnavailable as exc:
            log.warning("SQS is unavailable; polling the database", code=exc.code)
            self._is_look_due = True
            time.sleep(self._settings.poll_seconds)

    def take(self, offer: Offer) -> Wakeup | None:
        self._channels.update((offer.route, model) for model in offer.models)
        if offer.tenants:
            # Messages are for any worker of a model: this one would take messages of other tenants from them.
            return Wakeup()
        message, self._pending = self._pending, None
        has_waited, self._has_waited = self._has_waited, False
        if message is None and not has_waited:
            message = self._try_receive(offer)
        if message is not None:
            return self._to_wakeup(message)
        if not self._is_look_due and time.monotonic() < self._next_look_at:
            return None
        self._is_look_due = False
        self._next_look_at = time.monotonic() + self._settings.sweep_seconds
        return Wakeup()

    def put_back(self, wakeup: Wakeup) -> None:
        self._is_look_due = True
        if isinstance(wakeup.message, Message) and wakeup.message.job is not None:
            # The job is not at fault: a new message starts without receives.
            self._replace(wakeup.message, wakeup.message.job)

    def leased(self, wakeup: Wakeup, offer: Offer, lease: Lease | None) -> None:
        message = wakeup.message if isinstance(wakeup.message, Message) else None
        if lease is not None:
            with self._guard:
                self._held[lease.job.id, lease.fence] = _Held(message, renewed_at=time.monotonic())
        elif message is not None and message.job is not None:
            self._drop(message, message.job, offer)

    def renewed(self, lease: Lease) -> None:
        with self._guard:
            held = self._held.get((lease.job.id, lease.fence))
        if held is None or held.message is None:
            return
        now = time.monotonic()
        if now - held.renewed_at >= lease.seconds / _RENEWALS_PER_LEASE:
            held.renewed_at = now
            self._hide(held.message, _visibility_seconds(lease.seconds))

    def lost(self, lease: Lease) -> None:
        self._release(lease)

    def ended(self, lease: Lease, retry_in: float | None) -> None:
        self._is_look_due = True
        if (message := self._release(lease)) is None:
            return
        if retry_in is None:
            self._delete(message)
        else:
            self._hide(message, retry_in)

    def returned(self, lease: Lease, job: ReadyJob, ready_in: float) -> None:
        """The job is not at fault, so its message must not collect receives.

        FIFO queues cannot delay a single message: the sweep sends a new one when the job can be leased.
        """
        self._is_look_due = True
        message = self._release(lease)
        if not ready_in:
            self._replace(message, job)
        elif message is not None:
            self._delete(message)

    def sweep(self, queue: SweptQueue) -> None:
        """Send messages for ready jobs that have none, and fail the jobs of dead letters.

        A queue that cannot be used does not stop the sweep of the others.
        """
        ready = queue.ready_jobs(_MAX_SENT_PER_SWEEP)
        wanted: dict[str, tuple[SqsQueue, list[ReadyJob]]] = {}
        for channel in self._channels | ready.keys():
            with _logged_failures():
                sqs = self._queues.find(*channel)
                wanted.setdefault(sqs.url, (sqs, []))[1].extend(ready.get(channel, ()))
        for sqs, jobs in wanted.values():
            with _logged_failures():
                self._resend(sqs, jobs)
                _fail_dead_letters(sqs, queue)

    def close(self) -> None:
        self._poll.close()

    def _try_receive(self, offer: Offer) -> Message | None:
        try:
            return self._receive(offer, 0.0)
        except WakerUnavailable as exc:
            log.warning("SQS is unavailable; polling the database", code=exc.code)
            self._is_look_due = True
            return None

    def _receive(self, offer: Offer, wait_seconds: float) -> Message | None:
        """The next message of the queues this worker serves; the wait is divided among them."""
        found = (self._queues.find(offer.route, model) for model in offer.models)
        queues = {queue.url: queue for queue in found}
        visibility = _visibility_seconds(self._settings.lease_seconds)
        for queue in queues.values():
            message = queue.receive(wait_seconds=wait_seconds / len(queues), visibility_seconds=visibility)
            if message is not None:
                return message
        return None

    def _to_wakeup(self, message: Message) -> Wakeup | None:
        if message.job is None:
            log.warning("an SQS message of another program was deleted")
            self._delete(message)
            return None
        # A repeated message leases the job it names: a job that kills every worker uses up its own message.
        return Wakeup(message.job.job_id if message.receives > 1 else None, message)

    def _drop(self, message: Message, job: ReadyJob, offer: Offer) -> None:
        """The message led to no lease: its job has ended, or other workers serve it."""
        if job.route is offer.route and job.model in offer.models:
            self._delete(message)
            return
        log.warning("a message for other workers was received; use {model} in queue.waker", model=job.model)
        self._replace(message, job)

    def _release(self, lease: Lease) -> Message | None:
        with self._guard:
            held = self._held.pop((lease.job.id, lease.fence), None)
        return held.message if held is not None else None

    def _queue_of(self, job: ReadyJob) -> SqsQueue:
        return self._queues.find(job.route, job.model)

    def _hide(self, message: Message, seconds: float) -> None:
        try:
            message.queue.hide(message, seconds)
        except WakerUnavailable as exc:
            log.warning("the visibility of an SQS message was not extended", code=exc.code)

    def _delete(self, message: Message) -> None:
        try:
            message.queue.delete(message)
        except WakerUnavailable as exc:
            log.warning("an SQS message was not deleted; it will find no job", code=exc.code)

    def _replace(self, message: Message | None, job: ReadyJob) -> None:
        """Send a new message, visible immediately and without receives, instead of this one."""
        try:
            self._queue_of(job).send([(job, f"{job.job_id}-{job.fence}-{time.time_ns()}")])
        except WakerUnavailable as exc:
            log.warning("a wake-up was not sent; the sweep sends it", code=exc.code, job_id=job.job_id)
            return
        if message is not None:
            self._delete(message)

    def _resend(self, sqs: SqsQueue, ready: list[ReadyJob]) -> None:
        if not ready or (missing := len(ready) - sqs.count_visible()) <= 0:
            return
        # Concurrent sweeps use the same tokens: SQS keeps one message of each.
        period = int(time.time() // max(self._settings.sweep_seconds, 1.0))
        sqs.send([(job, f"{job.job_id}-{job.fence}-{period}") for job in ready[:missing]])
        log.info("wake-ups sent again", jobs=missing)


@contextmanager
def _logged_failures() -> Iterator[None]:
    try:
        yield
    except WakerUnavailable as exc:
        log.warning("the sweep of an SQS queue failed; it is retried", code=exc.code)


def _fail_dead_letters(sqs: SqsQueue, queue: SweptQueue) -> None:
    if (dead_letters := sqs.dead_letters()) is None:
        return
    for _ in range(_MAX_DEAD_PER_SWEEP):
        message = dead_letters.receive(wait_seconds=0, visibility_seconds=_DEAD_VISIBILITY_SECONDS)
        if message is None:
            return
        if message.job is None:
            log.warning("a dead letter of another program was deleted")
        elif queue.fail_abandoned(message.job.job_id, _ABANDONED):
            log.error("a dead letter failed its job", job_id=message.job.job_id, reason=_ABANDONED.reason)
        dead_letters.delete(message)


def _visibility_seconds(lease_seconds: float) -> float:
    """Longer than a lease that was just renewed: when the message appears again, the job can be leased."""
    return lease_seconds * (1 + 1 / _RENEWALS_PER_LEASE) + 1
