"""Doctor checks of the SQS queue that wakes workers."""

import json
from collections.abc import Iterator

from filmgate.errors import SettingsError, WakerUnavailable
from filmgate.jobs import Route
from filmgate.scheduling.wakers.sqs_queues import SqsQueue, SqsQueues
from filmgate.settings import QueueSettings
from filmgate.telemetry.findings import Finding, Verdict

_SUBJECT = "SQS"


def examine_sqs(settings: QueueSettings, model: str) -> Iterator[Finding]:
    """Findings about the queue that wakes the workers of this model; empty without SQS."""
    if settings.waker in ("poll", "notify"):
        return
    try:
        sqs = SqsQueues(settings).find(Route.GPU, model)
        attributes = sqs.attributes("All")
    except (WakerUnavailable, SettingsError) as exc:
        yield Finding(_SUBJECT, Verdict.FAIL, str(exc), _remedy(str(exc), settings))
        return
    yield Finding(_SUBJECT, Verdict.OK, f"{sqs.url} answers")
    yield examine_kind(attributes)
    yield _examine_visibility(attributes, settings)
    yield from _examine_dead_letters(sqs, attributes, settings)


def _remedy(message: str, settings: QueueSettings) -> str:
    if "is missing" in message:
        return "allow that action on the queue to this role"
    if "NonExistentQueue" in message:
        return f"create {settings.waker.removeprefix('sqs://')}, or check queue.region"
    if "cannot be reached" in message:
        return "check queue.endpoint, queue.region and the network"
    return "check queue.waker and the credentials of this process"


def examine_kind(attributes: dict[str, str]) -> Finding:
    """Wake-ups need groups and deduplication, which only FIFO queues have."""
    if attributes.get("FifoQueue") == "true":
        return Finding("SQS kind", Verdict.OK, "FIFO")
    return Finding("SQS kind", Verdict.FAIL, "a standard queue", "create it with FifoQueue=true")


def _examine_visibility(attributes: dict[str, str], settings: QueueSettings) -> Finding:
    seconds = int(attributes.get("VisibilityTimeout", 0))
    message = f"{seconds} s; a lease is {settings.lease_seconds:g} s"
    if seconds >= settings.lease_seconds:
        return Finding("SQS visibility", Verdict.OK, message)
    remedy = f"set VisibilityTimeout to {settings.lease_seconds:g} or more"
    return Finding("SQS visibility", Verdict.WARN, message, remedy)


def _examine_dead_letters(
    sqs: SqsQueue, attributes: dict[str, str], settings: QueueSettings
) -> Iterator[Finding]:
    policy = json.loads(attributes.get("RedrivePolicy", "{}"))
    if not policy:
        message = "no dead-letter queue: a message that no worker can process is delivered forever"
        yield Finding("SQS dead letters", Verdict.FAIL, message, "attach a FIFO queue by RedrivePolicy")
        return
    receives, least = int(policy["maxReceiveCount"]), settings.max_attempts + 2
    if receives < least:
        message = f"after {receives} receives, but a job has {settings.max_attempts} attempts"
        yield Finding("SQS dead letters", Verdict.WARN, message, f"set maxReceiveCount to {least} or more")
    try:
        dead = sqs.dead_letters()
        waiting = dead.count_visible() if dead is not None else 0
    except WakerUnavailable as exc:
        yield Finding("SQS dead letters", Verdict.FAIL, str(exc), _remedy(str(exc), settings))
        return
    if receives >= least:
        yield Finding("SQS dead letters", Verdict.OK, f"after {receives} receives; {waiting} messages now")
