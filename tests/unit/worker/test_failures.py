"""What an error means for the job: which errors use an attempt, and how long the job waits."""

from dataclasses import replace

import pytest

from filmgate.errors import (
    KeyRefused,
    KeyringUnavailable,
    ModelUnavailable,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from filmgate.jobs import Reason
from filmgate.worker.failures import to_failure
from tests.tickets import make_ticket, queued_job

CREATED_AT = 1_700_000_000.0
DAY_SECONDS = 86400.0


def leased(*, attempt=1, fence=1, age_seconds=60.0):
    job = queued_job(make_ticket(), CREATED_AT)
    return replace(job, attempt=attempt, fence=fence, started_at=CREATED_AT + age_seconds)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyringUnavailable("no answer"), Reason.KEY_REFUSED),
        (KeyRefused("no key"), Reason.KEY_REFUSED),
        (StoreUnavailable("no answer"), Reason.STORE_FAILED),
        (StoreFull("full"), Reason.STORE_FAILED),
        (StoreForbidden("no", permission="s3:GetObject"), Reason.STORE_FAILED),
        (ModelUnavailable("HTTP 503 from the model hub"), Reason.MODEL_UNUSABLE),
    ],
)
def test_a_job_that_an_outage_stops_waits_longer_each_time(error, reason):
    failed = to_failure(error, leased(fence=4))
    assert (failed.uses_attempt, failed.is_retryable, failed.retry_seconds) == (False, True, 80.0)
    assert failed.failure.reason is reason
    assert to_failure(error, leased(fence=2000)).retry_seconds == 600.0


@pytest.mark.parametrize("kind", [StoreUnavailable, ModelUnavailable])
def test_after_a_day_a_store_or_hub_that_fails_uses_attempts(kind):
    failed = to_failure(kind("no answer"), leased(age_seconds=DAY_SECONDS + 1))
    assert (failed.uses_attempt, failed.is_retryable) == (True, True)
