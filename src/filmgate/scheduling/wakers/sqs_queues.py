"""SQS as the queue sees it: boxes of wake-ups, one for each lane of workers."""

import json
import math
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from filmgate.aws.clients import ClientOptions, Endpoint, check_boto3, open_sqs
from filmgate.aws.errors import aws_errors
from filmgate.errors import DeliveryUnavailable, SettingsError
from filmgate.jobs import JOB_ID_PATTERN, JobId, Route
from filmgate.settings import QueueSettings

SETTING = "queue.delivery"
LONGEST_HIDE_SECONDS = 12 * 3600
MESSAGES_A_CALL = 10
_PLACES = ("{route}", "{model}")
_CONNECT_SECONDS = 2.0
_READ_SECONDS = 5.0
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Wakeup:
    """What a message says: there is work for workers of this route and model, and this job is some of it."""

    job_id: JobId
    route: Route
    model: str
    fence: int = 0

    def to_body(self) -> str:
        return json.dumps({"job": self.job_id, "route": self.route, "model": self.model, "fence": self.fence})

    @classmethod
    def from_body(cls, body: str) -> "Wakeup | None":
        """None for a body that no Filmgate wrote."""
        try:
            said = json.loads(body)
            if not JOB_ID_PATTERN.fullmatch(said["job"]):
                return None
            return cls(JobId(said["job"]), Route(said["route"]), str(said["model"]), int(said["fence"]))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message in our hands until its visibility runs out; `receives` counts this time too."""

    box: "Mailbox"
    receipt: str
    receives: int
    wakeup: Wakeup | None


class Mailbox:
    """One SQS FIFO queue. Every verb raises DeliveryUnavailable when SQS refuses or cannot be reached."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self.url = url
        self._dead_letters: Mailbox | None = None

    def send(self, wakeups: Sequence[tuple[Wakeup, str]]) -> None:
        """Send each once, however often this is repeated within five minutes with the same token.

        Each is a group of its own: of one group only one message is delivered at a time, and a job may need
        a second while its first is held by a worker that was woken by it and leased another.
        """
        entries = [
            {
                "Id": str(place),
                "MessageBody": wakeup.to_body(),
                "MessageGroupId": token,
                "MessageDeduplicationId": token,
            }
            for place, (wakeup, token) in enumerate(wakeups)
        ]
        for begin in range(0, len(entries), MESSAGES_A_CALL):
            batch = entries[begin : begin + MESSAGES_A_CALL]
            with sqs_errors():
                answer = self._client.send_message_batch(QueueUrl=self.url, Entries=batch)
            if failed := answer.get("Failed"):
                raise DeliveryUnavailable(f"SQS took {len(batch) - len(failed)} of {len(batch)} messages")

    def receive(self, *, wait_seconds: float, hide_seconds: float) -> Envelope | None:
        """The next message, hidden from others; None when none came within the wait."""
        with sqs_errors():
            answer = self._client.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=1,
                WaitTimeSeconds=round(wait_seconds),
                VisibilityTimeout=_hide(hide_seconds),
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        for message in answer.get("Messages", ()):
            receives = int(message["Attributes"]["ApproximateReceiveCount"])
            return Envelope(self, message["ReceiptHandle"], receives, Wakeup.from_body(message["Body"]))
        return None

    def hide(self, envelope: Envelope, seconds: float) -> None:
        """Nobody else sees the message for this long, counted from now."""
        with sqs_errors():
            self._client.change_message_visibility(
                QueueUrl=self.url, ReceiptHandle=envelope.receipt, VisibilityTimeout=_hide(seconds)
            )

    def delete(self, envelope: Envelope) -> None:
        with sqs_errors():
            self._client.delete_message(QueueUrl=self.url, ReceiptHandle=envelope.receipt)

    def count_visible(self) -> int:
        """Messages nobody holds; SQS calls its own answer approximate."""
        return int(self.attributes("ApproximateNumberOfMessages")["ApproximateNumberOfMessages"])

    def attributes(self, *names: str) -> dict[str, str]:
        with sqs_errors():
            answer = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=list(names))
        return dict(answer.get("Attributes", {}))

    def dead_letters(self) -> "Mailbox | None":
        """The box for messages that were received too often; None where the queue has none."""
        if self._dead_letters is None:
            policy = json.loads(self.attributes("RedrivePolicy").get("RedrivePolicy", "{}"))
            if target := policy.get("deadLetterTargetArn"):
                self._dead_letters = find_mailbox(self._client, target.rpartition(":")[2])
        return self._dead_letters


class PostOffice:
    """The boxes of `queue.delivery`: one, or one for each route and model its name has places for."""

    def __init__(self, settings: QueueSettings) -> None:
        self._address = parse_address(settings.delivery)
        self._client = _open_client(settings)
        self._boxes: dict[str, Mailbox] = {}

    def box(self, route: Route, model: str) -> Mailbox:
        """Where wake-ups for these workers go. Raises DeliveryUnavailable when there is no such queue."""
        address = fill_places(self._address, route, model)
        if address not in self._boxes:
            if address.startswith("https://"):
                self._boxes[address] = Mailbox(self._client, address)
            else:
                self._boxes[address] = find_mailbox(self._client, address)
        return self._boxes[address]


def parse_address(delivery: str) -> str:
    """A queue name or an https URL, still with its places; raises SettingsError."""
    address = delivery.removeprefix("sqs://")
    bare = address
    for place in _PLACES:
        bare = bare.replace(place, "x")
    is_url = delivery.startswith("https://") and bare.count("/") >= 4
    is_name = delivery.startswith("sqs://") and not _NOT_IN_NAMES.search(bare.removesuffix(".fifo"))
    if not (is_url or is_name) or not bare.endswith(".fifo"):
        raise SettingsError(
            f"{delivery!r} is not sqs://NAME.fifo or the https URL of a FIFO queue; {{route}} and {{model}} "
            "may stand in its name",
            option=SETTING,
        )
    return address


def fill_places(address: str, route: Route, model: str) -> str:
    """The name of one lane's queue; what SQS does not allow in names becomes a dash."""
    return address.replace("{route}", route).replace("{model}", _NOT_IN_NAMES.sub("-", model))


def find_mailbox(client: Any, name: str) -> Mailbox:
    with sqs_errors():
        return Mailbox(client, client.get_queue_url(QueueName=name)["QueueUrl"])


def sqs_errors() -> AbstractContextManager[None]:
    """Raises DeliveryUnavailable for a failed SQS call; the message names a missing permission."""
    return aws_errors("SQS", lambda failure: DeliveryUnavailable(failure.message))


def _open_client(settings: QueueSettings) -> Any:
    check_boto3(SETTING)
    options = ClientOptions(
        connect_seconds=_CONNECT_SECONDS,
        read_seconds=settings.wait_seconds + _READ_SECONDS,
        max_attempts=2,
        max_connections=64,
    )
    return open_sqs(Endpoint(settings.region, settings.endpoint, "queue.region"), options)


def _hide(seconds: float) -> int:
    return min(math.ceil(seconds), LONGEST_HIDE_SECONDS)
