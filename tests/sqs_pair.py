"""SQS queues on moto's server."""

import json
import secrets
from functools import cache

import boto3
import pytest

REGION = "eu-west-1"


@cache
def sqs_client(url):
    return boto3.client("sqs", endpoint_url=url, region_name=REGION)


class SqsPair:
    """A FIFO queue and its dead-letter queue, with direct access to both."""

    def __init__(self, url, *, name=None, max_receives=5, visibility_seconds=30, is_fifo=True):
        self.endpoint = url
        self.client = sqs_client(url)
        self.name = (name or f"filmgate-{secrets.token_hex(4)}") + (".fifo" if is_fifo else "")
        fifo = {"FifoQueue": "true"} if is_fifo else {}
        dead = self.client.create_queue(QueueName=f"dead-{self.name}", Attributes=fifo)
        self.dead_url = dead["QueueUrl"]
        policy = {"deadLetterTargetArn": self._arn(self.dead_url), "maxReceiveCount": max_receives}
        attributes = {"VisibilityTimeout": str(visibility_seconds), "RedrivePolicy": json.dumps(policy)}
        made = self.client.create_queue(QueueName=self.name, Attributes=fifo | attributes)
        self.url = made["QueueUrl"]

    @property
    def settings(self):
        """Fields of `QueueSettings`."""
        return {"waker": f"sqs://{self.name}", "region": REGION, "endpoint": self.endpoint}

    def count(self, kind="ApproximateNumberOfMessages", url=None):
        answer = self.client.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=[kind])
        return int(answer["Attributes"][kind])

    def count_held(self):
        return self.count("ApproximateNumberOfMessagesNotVisible")

    def take(self, **options):
        """Receive messages and make them visible again, as after a worker died."""
        messages = self.client.receive_message(QueueUrl=self.url, **options).get("Messages", [])
        for message in messages:
            self.client.change_message_visibility(
                QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
        return messages

    def send(self, body, group=None):
        self.client.send_message(
            QueueUrl=self.url,
            MessageBody=body,
            MessageGroupId=group or secrets.token_hex(8),
            MessageDeduplicationId=secrets.token_hex(8),
        )

    def purge(self):
        self.client.purge_queue(QueueUrl=self.url)

    def _arn(self, url):
        answer = self.client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return answer["Attributes"]["QueueArn"]


@pytest.fixture
def sqs(aws_url):
    return SqsPair(aws_url)
