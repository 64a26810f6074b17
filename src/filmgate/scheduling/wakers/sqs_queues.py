"""SQS FIFO queues: one for all workers, or one per route and model."""

import json
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from filmgate.aws.clients import ClientOptions, Endpoint, check_boto3, open_client
from filmgate.aws.errors import aws_errors
from filmgate.errors import SettingsError, WakerUnavailable
from filmgate.jobs import JOB_ID_PATTERN, JobId, Route
from filmgate.scheduling.claims import ReadyJob
from filmgate.settings import QueueSettings

SETTING = "queue.waker"
MAX_VISIBILITY_SECONDS = 12 * 3600
MESSAGES_PER_CALL = 10
_PLACEHOLDERS = ("{route}", "{model}")
_CONNECT_SECONDS = 2.0
_READ_SECONDS = 5.0
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Message:
    """A received message, invisible to others until its visibility ends. `receives` includes this one.

    `job` is None for a message that Filmgate did not send.
    """

    queue: "SqsQueue"
    receipt: str
    receives: int
    job: ReadyJob | None


def to_body(job: ReadyJob) -> str:
    return json.dumps({"job": job.job_id, "route": job.route, "model": job.model, "fence": job.fence})


def from_body(body: str) -> ReadyJob | None:
    """None for a body that Filmgate did not write."""
    try:
        fields = json.loads(body)
        if not JOB_ID_PATTERN.fullmatch(fields["job"]):
            return None
        return ReadyJob(
            JobId(fields["job"]), Route(fields["route"]), str(fields["model"]), int(fields["fence"])
        )
    except (ValueError, KeyError, TypeError):
        return None


class SqsQueue:
    """One SQS FIFO queue. Every method raises WakerUnavailable when SQS fails the call."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self.url = url
        self._dead_letters: SqsQueue | None = None

    def send(self, jobs: Sequence[tuple[ReadyJob, str]]) -> None:
        """Send one message per job and token; SQS drops repeated tokens for five minutes.

        Each message has its own group, because SQS delivers one message of a group at a time and a job may
        need a second message while a worker that leased another job holds the first.
        """
        entries = [
            {
                "Id": str(place),
                "MessageBody": to_body(job),
                "MessageGroupId": token,
                "MessageDeduplicationId": token,
            }
            for place, (job, token) in enumerate(jobs)
        ]
        for begin in range(0, len(entries), MESSAGES_PER_CALL):
            batch = entries[begin : begin + MESSAGES_PER_CALL]
            with sqs_errors():
                answer = self._client.send_message_batch(QueueUrl=self.url, Entries=batch)
            if failed := answer.get("Failed"):
                raise WakerUnavailable(f"SQS took {len(batch) - len(failed)} of {len(batch)} messages")

    def receive(self, *, wait_seconds: float, visibility_seconds: float) -> Message | None:
        """The next message; None when none arrived within the wait, in whole seconds."""
        with sqs_errors():
            answer = self._client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=1,
                # Rounded up: a wait of 0 seconds would be a busy loop for a worker with many queues.
                WaitTimeSeconds=math.ceil(wait_seconds),
                VisibilityTimeout=_to_visibility(visibility_seconds),
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        for message in answer.get("Messages", ()):
            receives = int(message["Attributes"]["ApproximateReceiveCount"])
            return Message(self, message["ReceiptHandle"], receives, from_body(message["Body"]))
        return None

    def hide(self, message: Message, seconds: float) -> None:
        """Keep the message invisible to others for this many seconds from now."""
        with sqs_errors():
            self._client.change_message_visibility(
                QueueUrl=self.url, ReceiptHandle=message.receipt, VisibilityTimeout=_to_visibility(seconds)
            )

    def delete(self, message: Message) -> None:
        with sqs_errors():
            self._client.delete_message(QueueUrl=self.url, ReceiptHandle=message.receipt)

    def count_visible(self) -> int:
        """Visible messages, approximately."""
        return int(self.attributes("ApproximateNumberOfMessages")["ApproximateNumberOfMessages"])

    def attributes(self, *names: str) -> dict[str, str]:
        with sqs_errors():
            answer = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=list(names))
        return dict(answer.get("Attributes", {}))

    def dead_letters(self) -> "SqsQueue | None":
        """The dead-letter queue; None if the queue has none."""
        if self._dead_letters is None:
            policy = json.loads(self.attributes("RedrivePolicy").get("RedrivePolicy", "{}"))
            if target := policy.get("deadLetterTargetArn"):
                self._dead_letters = find_queue(self._client, target.rpartition(":")[2])
        return self._dead_letters


class SqsQueues:
    """The queues of `queue.waker`: one, or one per {route} and {model} in its name."""

    def __init__(self, settings: QueueSettings) -> None:
        self._address = parse_address(settings.waker)
        self._client = _open_client(settings)
        self._queues: dict[str, SqsQueue] = {}

    def find(self, route: Route, model: str) -> SqsQueue:
        """The queue of these workers. Raises WakerUnavailable when it does not exist."""
        address = fill_name(self._address, route, model)
        if address not in self._queues:
            if address.startswith("https://"):
                self._queues[address] = SqsQueue(self._client, address)
            else:
                self._queues[address] = find_queue(self._client, address)
        return self._queues[address]


def parse_address(waker: str) -> str:
    """A queue name or an https URL with its placeholders. Raises SettingsError."""
    address = waker.removeprefix("sqs://")
    bare = address
    for place in _PLACEHOLDERS:
        bare = bare.replace(place, "x")
    is_url = waker.startswith("https://") and bare.count("/") >= 4
    is_name = waker.startswith("sqs://") and not _NOT_IN_NAMES.search(bare.removesuffix(".fifo"))
    if not (is_url or is_name) or not bare.endswith(".fifo"):
        raise SettingsError(
            f"{waker!r} is not poll, notify, sqs://NAME.fifo or the https URL of a FIFO queue; "
            "the name may contain {route} and {model}",
            option=SETTING,
        )
    return address


def fill_name(address: str, route: Route, model: str) -> str:
    """The name with its placeholders filled in; characters that SQS does not allow become dashes."""
    return address.replace("{route}", route).replace("{model}", _NOT_IN_NAMES.sub("-", model))


def find_queue(client: Any, name: str) -> SqsQueue:
    with sqs_errors():
        return SqsQueue(client, client.get_queue_url(QueueName=name)["QueueUrl"])


def sqs_errors() -> AbstractContextManager[None]:
    """Turns every error of boto3 in the block into WakerUnavailable."""
    return aws_errors("SQS", lambda failure: WakerUnavailable(failure.message))


def _open_client(settings: QueueSettings) -> Any:
    check_boto3(SETTING)
    options = ClientOptions(
        connect_seconds=_CONNECT_SECONDS,
        read_seconds=settings.wait_seconds + _READ_SECONDS,
        max_attempts=2,
        max_connections=64,
    )
    return open_client("sqs", Endpoint(settings.region, settings.endpoint, "queue.region"), options)


def _to_visibility(seconds: float) -> int:
    return min(math.ceil(seconds), MAX_VISIBILITY_SECONDS)
