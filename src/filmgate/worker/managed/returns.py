"""The way home: a job the provider refused or failed goes back to our own GPUs."""

from filmgate.jobs import Failure, Job, Lease, Reason
from filmgate.queue.base import Setback
from filmgate.worker.publication import Publisher


def send_home(publisher: Publisher, lease: Lease, words: str) -> Job:
    """End this attempt; what the provider did not render is rendered here. Raises LeaseLost."""
    return publisher.give_up(lease, Setback(Failure(Reason.PROVIDER_FAILED, words)))
