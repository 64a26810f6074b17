"""A worker's word that it lives and which models it has loaded, for as long as it does."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from filmgate.errors import QueueUnavailable
from filmgate.jobs import WorkerId
from filmgate.models.cards import ModelCard
from filmgate.scheduling.workers import BEAT_SECONDS, Roster
from filmgate.telemetry.logs import Log


@contextmanager
def present(
    roster: Roster, worker_id: WorkerId, device: str, read_cards: Callable[[], Sequence[ModelCard]]
) -> Iterator[None]:
    """Announce the worker until the block ends. Until it has a card, its canary has not sung: say nothing."""
    is_over, log = threading.Event(), Log("worker", worker_id=worker_id)

    def beat() -> None:
        while not is_over.is_set():
            cards = read_cards()
            try:
                if cards:
                    roster.announce(worker_id, device, cards)
            except QueueUnavailable as exc:
                log.warning("not announced", code=exc.code)
            is_over.wait(BEAT_SECONDS if cards else BEAT_SECONDS / 10)

    thread = threading.Thread(target=beat, name="presence", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        # Unsaid, it is forgotten in half a minute.
        with suppress(QueueUnavailable):
            roster.leave(worker_id)
