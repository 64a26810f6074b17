"""The way home: a job the provider refused or failed goes back to our own GPUs, and loses no attempt."""

import time
from dataclasses import replace

from filmgate.jobs import Failure, Job, Lease, Reason, RouteReason
from filmgate.scheduling.base import Setback
from filmgate.worker.publisher import Publisher


def send_home(publisher: Publisher, lease: Lease, words: str, reason: RouteReason) -> Job:
    """End this attempt; what the provider did not render is rendered here. Raises LeaseLost.

    A job that was RETURNED is never sent away again; one whose provider was not well may be.
    """
    routing = replace(
        lease.job.routing,
        reason=reason,
        detail=words,
        changes=(),
        usd=None,
        decided_at=time.time(),
    )
    failure = Failure(Reason.PROVIDER_FAILED, words)
    return publisher.fail_attempt(lease, Setback(failure, counts=False, routing=routing))
