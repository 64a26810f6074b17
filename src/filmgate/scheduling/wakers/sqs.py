"""The JobQueue whose workers are woken by SQS instead of asking the database again and again.

The database stays the truth: it holds the jobs, the fences, the shares. A message only says that there is
work for a lane (a route and a model); which job that is, the lease decides. A message that is lost, doubled
or late changes when somebody looks, never what they find. docs/adr/0048 has the reasons.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from filmgate.database import Database
from filmgate.database.schema import jobs
from filmgate.errors import DeliveryUnavailable, KeyringUnavailable, LeaseLost, QueueUnavailable
from filmgate.jobs import Failure, Job, JobId, JobState, Lease, Progress, Reason, Ticket
from filmgate.scheduling import fair_share
from filmgate.scheduling.base import Finish, Offer, Setback, Standing
from filmgate.scheduling.claims import find_named, is_due
from filmgate.scheduling.queue import SqlQueue
from filmgate.scheduling.waiting import Move
from filmgate.scheduling.wakers.ready import Lane, find_waiting
from filmgate.scheduling.wakers.sqs_queues import Envelope, Mailbox, PostOffice, Wakeup
from filmgate.settings import QueueSettings
from filmgate.store.keys.cache import DataKeys
from filmgate.telemetry.logs import Log

# A job's visibility is renewed this often within one lease, however often the heart beats.
_RENEWALS_A_LEASE = 3
# After a failed send others are not tried for this long: an outage of SQS must not slow requests down.
_SILENCE_SECONDS = 5.0
_SIGN_IN_SECONDS = 5.0
_SENT_A_SWEEP = 500
_LETTERS_A_SWEEP = 100
_LETTER_SECONDS = 30.0

log = Log("queue")


@dataclass(slots=True)
class _Held:
    """A lease of this process and the message it was woken by, if any, hidden from others meanwhile."""

    envelope: Envelope | None
    renewed_at: float
    beaten_at: float


class SqsQueue(SqlQueue):
    """Jobs as rows, wake-ups as messages."""

    def __init__(self, database: Database, keys: DataKeys, settings: QueueSettings, post: PostOffice) -> None:
        super().__init__(database, keys, settings)
        self._post = post
        self._held: dict[tuple[JobId, int], _Held] = {}
        self._guard = threading.Lock()
        self._lanes: set[Lane] = set()
        self._swept_at = time.monotonic()
        self._silent_until = 0.0
        self._signed_in_at = -_SIGN_IN_SECONDS
        # Whoever ended a job may have freed its tenant's next: look once before waiting for a message.
        self._is_curious = True

    def enqueue(self, ticket: Ticket) -> Job:
        job = super().enqueue(ticket)
        if job.id == ticket.job_id:
            self._announce(Wakeup(job.id, job.route, job.spec.model))
        return job

    def reroute(self, moves: Sequence[Move]) -> int:
        moved = super().reroute(moves)
        if moved:
            self.sweep()  # their messages lie in the boxes of the route they left
        return moved

    def lease(self, offer: Offer) -> Lease | None:
        self._sign_in(offer)
        self._lanes.update((offer.route, model) for model in offer.models)
        is_curious, self._is_curious = self._is_curious, False
        # Whoever has work in hand is asked for room beside it and must not be kept.
        is_patient = not is_curious and not self._is_busy()
        try:
            envelope = self._receive(offer, self._settings.wait_seconds if is_patient else 0.0)
        except DeliveryUnavailable as exc:
            log.warning("no messages; looking at the database instead", code=exc.code)
            return self._hold(super().lease(offer), None)
        if envelope is not None:
            return self._hold(self._answer(offer, envelope), envelope)
        is_sweep_due = time.monotonic() - self._swept_at >= self._settings.sweep_seconds
        lease = self._hold(super().lease(offer), None) if is_curious or is_sweep_due else None
        if is_sweep_due:
            try:
                self.sweep()
            except QueueUnavailable as exc:  # and yet what was leased is leased
                log.warning("the sweep of messages failed; it is tried again", code=exc.code)
        return lease

    def heartbeat(self, lease: Lease, progress: Progress | None = None) -> Standing:
        with self._letting_go_if_lost(lease):
            standing = super().heartbeat(lease, progress)
        self._renew(lease)
        return standing

    def complete(self, lease: Lease, finish: Finish) -> Job:
        with self._letting_go_if_lost(lease):
            job = super().complete(lease, finish)
        self._is_curious = True
        if (envelope := self._let_go(lease)) is not None:
            self._delete(envelope)
        return job

    def give_up(self, lease: Lease, setback: Setback) -> Job:
        with self._letting_go_if_lost(lease):
            job = super().give_up(lease, setback)
        self._is_curious = True
        envelope = self._let_go(lease)
        if not job.state.is_final and not setback.counts:
            self._replace(envelope, Wakeup(job.id, job.route, job.spec.model, job.fence))
        elif envelope is not None and job.state.is_final:
            self._delete(envelope)
        elif envelope is not None:
            # The same message comes back when the backoff is over.
            self._hide(envelope, self._backoff_seconds(job.attempt))
        return job

    def sweep(self) -> None:
        """Send what waits without a message, and fail the jobs of dead letters. Anyone may, at any time."""
        self._swept_at = time.monotonic()
        with self._database.read() as connection:
            waiting = find_waiting(connection, self._database.steady_now(connection), _SENT_A_SWEEP)
        boxes: dict[str, Mailbox] = {}
        wanted: dict[str, list[Wakeup]] = {}
        try:
            for lane in self._lanes | waiting.keys():
                box = self._post.box(*lane)
                boxes[box.url] = box
                wanted.setdefault(box.url, []).extend(waiting.get(lane, ()))
            for url, box in boxes.items():
                self._resend(box, wanted[url])
                self._bury_dead(box)
        except DeliveryUnavailable as exc:
            log.warning("the sweep of messages failed; it is tried again", code=exc.code)

    def _sign_in(self, offer: Offer) -> None:
        """Say that this worker is there: one that waits for messages does not ask the database for work."""
        if time.monotonic() - self._signed_in_at < _SIGN_IN_SECONDS:
            return
        self._signed_in_at = time.monotonic()
        with self._database.write(is_durable=False) as connection:
            self._attendance.mark(connection, offer, self._database.steady_now(connection))

    def _announce(self, wakeup: Wakeup) -> None:
        """A send that fails costs time, not the job: the sweep sends again."""
        self._lanes.add((wakeup.route, wakeup.model))
        if time.monotonic() < self._silent_until:
            return
        try:
            self._post.box(wakeup.route, wakeup.model).send([(wakeup, f"{wakeup.job_id}-{wakeup.fence}")])
        except DeliveryUnavailable as exc:
            self._silent_until = time.monotonic() + _SILENCE_SECONDS
            log.warning("a wake-up was not sent; the sweep will", code=exc.code, job_id=wakeup.job_id)

    def _receive(self, offer: Offer, wait_seconds: float) -> Envelope | None:
        """The next message of any box this worker serves; the wait is shared out among them."""
        boxes = {box.url: box for box in (self._post.box(offer.route, model) for model in offer.models)}
        for box in boxes.values():
            envelope = box.receive(
                wait_seconds=wait_seconds / len(boxes), hide_seconds=_outlast(self._settings.lease_seconds)
            )
            if envelope is not None:
                return envelope
        return None

    def _answer(self, offer: Offer, envelope: Envelope) -> Lease | None:
        """Lease what is fair. A message that comes again asks for the very job it names first: if that job
        ends every worker, its own message is the one that dies of it.
        """
        wakeup = envelope.wakeup
        if wakeup is None:
            log.warning("a message that is not ours was removed")
            self._delete(envelope)
            return None
        try:
            lease = self._lease_named(offer, wakeup.job_id) if envelope.receives > 1 else None
            lease = lease or super().lease(offer)
        except (QueueUnavailable, KeyringUnavailable):
            # No fault of the job's: the receive must not count against it.
            self._replace(envelope, wakeup)
            raise
        if lease is not None:
            return lease
        if wakeup.route is offer.route and wakeup.model in offer.models:
            self._delete(envelope)
        else:
            log.warning("a message for other workers; give queue.delivery a {model}", model=wakeup.model)
            self._replace(envelope, wakeup)
        return None

    def _lease_named(self, offer: Offer, job_id: JobId) -> Lease | None:
        with self._database.write() as connection:
            steady_now = self._database.steady_now(connection)
            if (row := find_named(connection, offer, job_id, steady_now)) is None:
                return None
            if (verdict := self._judge(row)) is not None:
                self._end(connection, row, verdict)
                return None
            if row["wake_at"] is None:
                fair_share.charge(connection, row)
            return self._grant(connection, row, offer)

    @contextmanager
    def _letting_go_if_lost(self, lease: Lease) -> Iterator[None]:
        """Without the lease its message is not ours: it comes back by itself, to whoever it finds."""
        try:
            yield
        except LeaseLost:
            self._let_go(lease)
            raise

    def _hold(self, lease: Lease | None, envelope: Envelope | None) -> Lease | None:
        if lease is not None:
            now = time.monotonic()
            with self._guard:
                self._held[lease.job.id, lease.fence] = _Held(envelope, renewed_at=now, beaten_at=now)
        return lease

    def _let_go(self, lease: Lease) -> Envelope | None:
        with self._guard:
            held = self._held.pop((lease.job.id, lease.fence), None)
        return held.envelope if held is not None else None

    def _is_busy(self) -> bool:
        """Whether a lease of this process is alive; one that was dropped without a word is not."""
        since = time.monotonic() - self._settings.lease_seconds
        with self._guard:
            return any(held.beaten_at > since for held in self._held.values())

    def _renew(self, lease: Lease) -> None:
        with self._guard:
            held = self._held.get((lease.job.id, lease.fence))
        if held is None:
            return
        now = held.beaten_at = time.monotonic()
        if held.envelope is not None and now - held.renewed_at >= lease.seconds / _RENEWALS_A_LEASE:
            held.renewed_at = now
            self._hide(held.envelope, _outlast(lease.seconds))

    def _hide(self, envelope: Envelope, seconds: float) -> None:
        try:
            envelope.box.hide(envelope, seconds)
        except DeliveryUnavailable as exc:
            log.warning("a message may be seen early; the fence decides", code=exc.code)

    def _delete(self, envelope: Envelope) -> None:
        try:
            envelope.box.delete(envelope)
        except DeliveryUnavailable as exc:
            log.warning("a message may be seen again; it will find nothing", code=exc.code)

    def _replace(self, envelope: Envelope | None, wakeup: Wakeup) -> None:
        """A new message, seen at once and never received yet, instead of the one in our hands."""
        try:
            self._post.box(wakeup.route, wakeup.model).send([(wakeup, _unique(wakeup))])
        except DeliveryUnavailable as exc:
            log.warning("a wake-up was not sent; the sweep will", code=exc.code, job_id=wakeup.job_id)
            return
        if envelope is not None:
            self._delete(envelope)

    def _resend(self, box: Mailbox, wanted: list[Wakeup]) -> None:
        if not wanted or (missing := len(wanted) - box.count_visible()) <= 0:
            return
        # Sweeps that run at once, here or elsewhere, use the same tokens: SQS keeps one of each.
        period = int(time.time() // max(self._settings.sweep_seconds, 1.0))
        box.send([(wakeup, f"{wakeup.job_id}-{wakeup.fence}-{period}") for wakeup in wanted[:missing]])
        log.info("wake-ups sent again", jobs=missing)

    def _bury_dead(self, box: Mailbox) -> None:
        if (dead := box.dead_letters()) is None:
            return
        for _ in range(_LETTERS_A_SWEEP):
            letter = dead.receive(wait_seconds=0, hide_seconds=_LETTER_SECONDS)
            if letter is None:
                return
            if letter.wakeup is None:
                log.warning("a dead letter that is not ours was removed")
            else:
                self._fail_dead(letter.wakeup)
            dead.delete(letter)

    def _fail_dead(self, wakeup: Wakeup) -> None:
        """A job whose message nobody survived. One that ended, or that a worker holds now, is left alone."""
        with self._database.write() as connection:
            found = sa.select(jobs.c.tenant_id).where(jobs.c.id == wakeup.job_id)
            if (tenant_id := connection.execute(found).scalar_one_or_none()) is None:
                return
            _, row = self._lock(connection, tenant_id, wakeup.job_id)
            overdue = is_due(
                sa.select(jobs.c.seq).where(jobs.c.seq == row["seq"]), self._database.steady_now(connection)
            )
            is_held = row["state"] == JobState.RUNNING and connection.execute(overdue).first() is None
            if JobState(row["state"]).is_final or is_held:
                return
            message = "its message was delivered again and again and no worker finished it"
            self._end(connection, row, Failure(Reason.WORKER_LOST, message))
        log.error("a dead letter failed its job", job_id=wakeup.job_id, reason=Reason.WORKER_LOST)


def _outlast(lease_seconds: float) -> float:
    """How long a message hides: past the end of a lease that was kept after the last renewal, so that
    whoever sees it again finds the job free.
    """
    return lease_seconds * (1 + 1 / _RENEWALS_A_LEASE) + 1


def _unique(wakeup: Wakeup) -> str:
    return f"{wakeup.job_id}-{wakeup.fence}-{time.time_ns()}"
