"""The way home: a job the provider refused or failed goes back to our own GPUs, and loses no attempt."""

import time
from dataclasses import replace

from filmgate.jobs import Failure, Job, Lease, Reason, RouteReason
from filmgate.queue.base import Setback
from filmgate.worker.publication import Publisher


def send_home(publisher: Publisher, lease: Lease, words: str) -> Job:
    """End this attempt; what the provider did not render is rendered here. Raises LeaseLost."""
    routing = replace(
        lease.job.routing,
        reason=RouteReason.RETURNED,
        detail=words,
        changes=(),
        usd=None,
        decided_at=time.time(),
    )
    failure = Failure(Reason.PROVIDER_FAILED, words)
    return publisher.give_up(lease, Setback(failure, counts=False, routing=routing))
