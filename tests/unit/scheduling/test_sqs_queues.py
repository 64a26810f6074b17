import sys

import pytest

from filmgate.errors import SettingsError
from filmgate.jobs import Route, new_job_id
from filmgate.scheduling.claims import ReadyJob
from filmgate.scheduling.wakers.sqs_queues import (
    SqsQueue,
    SqsQueues,
    fill_name,
    from_body,
    parse_address,
    to_body,
)
from filmgate.settings import QueueSettings


def test_a_body_is_read_as_it_was_written():
    job = ReadyJob(new_job_id(), Route.MANAGED, "wan2.1", fence=3)
    assert from_body(to_body(job)) == job


@pytest.mark.parametrize("body", ["", "7", "null", "{}", '{"job": 5}', '{"job": "video_x", "fence": 0}'])
def test_the_body_of_another_program_is_not_a_job(body):
    assert from_body(body) is None


@pytest.mark.parametrize(
    "waker",
    [
        "sqs://filmgate.fifo",
        "sqs://filmgate-{route}-{model}.fifo",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/filmgate.fifo",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/filmgate-{model}.fifo",
    ],
)
def test_a_waker_is_the_name_or_url_of_a_fifo_queue(waker):
    assert parse_address(waker) == waker.removeprefix("sqs://")


@pytest.mark.parametrize(
    "waker",
    [
        "sqs://filmgate",
        "sqs://",
        "filmgate.fifo",
        "sqs://film gate.fifo",
        "https://x.fifo",
        "sqs://{tenant}.fifo",
    ],
)
def test_any_other_waker_is_refused(waker):
    with pytest.raises(SettingsError, match="FIFO queue") as caught:
        parse_address(waker)
    assert caught.value.option == "queue.waker"


def test_placeholders_become_names_that_sqs_allows():
    assert fill_name("film-{route}-{model}.fifo", Route.GPU, "Wan-AI/Wan2.1") == "film-gpu-Wan-AI-Wan2-1.fifo"
    assert fill_name("film.fifo", Route.GPU, "wan") == "film.fifo"


@pytest.mark.parametrize(("seconds", "sent"), [(0.0, 0), (0.3, 1), (5.0, 5)])
def test_a_share_of_the_wait_is_never_rounded_to_none(seconds, sent):
    """A worker with sixteen models waits a sixteenth of the time for each queue."""
    requests = []

    class Client:
        def receive_message(self, **request):
            requests.append(request["WaitTimeSeconds"])
            return {}

    assert SqsQueue(Client(), "url").receive(wait_seconds=seconds, visibility_seconds=30) is None
    assert requests == [sent]


def test_without_boto3_the_error_is_one_line_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SettingsError, match=r"pip install '\.\[aws\]'") as caught:
        SqsQueues(QueueSettings(waker="sqs://filmgate.fifo"))
    assert "\n" not in str(caught.value)


def test_without_a_region_the_error_names_the_setting(monkeypatch):
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(SettingsError, match=r"queue\.region"):
        SqsQueues(QueueSettings(waker="sqs://filmgate.fifo"))
