"""What `filmgate doctor` asks about delivery: is the queue there, is it the right kind, does it fit us?"""

import json
from collections.abc import Iterator

from filmgate.errors import DeliveryUnavailable, SettingsError
from filmgate.jobs import Route
from filmgate.scheduling.wakers.sqs_queues import Mailbox, PostOffice
from filmgate.settings import QueueSettings
from filmgate.telemetry.findings import Finding, Verdict

_SUBJECT = "SQS"


def examine_delivery(settings: QueueSettings, model: str) -> Iterator[Finding]:
    """Findings about the queue that wakes the workers of this model; none where workers ask the database."""
    if not settings.delivery:
        return
    try:
        box = PostOffice(settings).box(Route.GPU, model)
        about = box.attributes("All")
    except (DeliveryUnavailable, SettingsError) as exc:
        yield Finding(_SUBJECT, Verdict.FAIL, str(exc), _remedy(str(exc), settings))
        return
    yield Finding(_SUBJECT, Verdict.OK, f"{box.url} answers")
    yield examine_kind(about)
    yield _examine_visibility(about, settings)
    yield from _examine_dead_letters(box, about, settings)


def _remedy(words: str, settings: QueueSettings) -> str:
    if "is missing" in words:
        return "allow that action on the queue to this role"
    if "NonExistentQueue" in words:
        return f"create {settings.delivery.removeprefix('sqs://')}, or check queue.region"
    if "cannot be reached" in words:
        return "check queue.endpoint, queue.region and the network"
    return "check queue.delivery and the credentials of this process"


def examine_kind(about: dict[str, str]) -> Finding:
    """Wake-ups need groups and tokens, which only a FIFO queue has."""
    if about.get("FifoQueue") == "true":
        return Finding("SQS kind", Verdict.OK, "FIFO")
    return Finding("SQS kind", Verdict.FAIL, "a standard queue", "create it with FifoQueue=true")


def _examine_visibility(about: dict[str, str], settings: QueueSettings) -> Finding:
    seconds = int(about.get("VisibilityTimeout", 0))
    words = f"hides a message for {seconds} s, a lease is {settings.lease_seconds:g} s"
    if seconds >= settings.lease_seconds:
        return Finding("SQS visibility", Verdict.OK, words)
    remedy = f"set VisibilityTimeout to {settings.lease_seconds:g} or more"
    return Finding("SQS visibility", Verdict.WARN, words, remedy)


def _examine_dead_letters(box: Mailbox, about: dict[str, str], settings: QueueSettings) -> Iterator[Finding]:
    policy = json.loads(about.get("RedrivePolicy", "{}"))
    if not policy:
        words = "none: a message that ends every worker comes back for ever"
        yield Finding("SQS dead letters", Verdict.FAIL, words, "attach a FIFO queue by RedrivePolicy")
        return
    receives, least = int(policy["maxReceiveCount"]), settings.max_attempts + 2
    if receives < least:
        words = f"after {receives} receives, yet a job has {settings.max_attempts} attempts"
        yield Finding("SQS dead letters", Verdict.WARN, words, f"set maxReceiveCount to {least} or more")
    try:
        dead = box.dead_letters()
        waiting = dead.count_visible() if dead is not None else 0
    except DeliveryUnavailable as exc:
        yield Finding("SQS dead letters", Verdict.FAIL, str(exc), _remedy(str(exc), settings))
        return
    if receives >= least:
        yield Finding("SQS dead letters", Verdict.OK, f"after {receives} receives; {waiting} there now")
