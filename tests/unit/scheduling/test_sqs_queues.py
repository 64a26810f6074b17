import sys

import pytest

from filmgate.errors import SettingsError
from filmgate.jobs import Route, new_job_id
from filmgate.scheduling.wakers.sqs_queues import SqsQueues, Wakeup, fill_places, parse_address
from filmgate.settings import QueueSettings


def test_a_wakeup_survives_its_body():
    wakeup = Wakeup(new_job_id(), Route.MANAGED, "wan2.1", fence=3)
    assert Wakeup.from_body(wakeup.to_body()) == wakeup


@pytest.mark.parametrize("body", ["", "7", "null", "{}", '{"job": 5}', '{"job": "video_x", "fence": 0}'])
def test_a_body_nobody_of_us_wrote_is_no_wakeup(body):
    assert Wakeup.from_body(body) is None


@pytest.mark.parametrize(
    "delivery",
    [
        "sqs://filmgate.fifo",
        "sqs://filmgate-{route}-{model}.fifo",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/filmgate.fifo",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/filmgate-{model}.fifo",
    ],
)
def test_a_name_or_an_address_of_a_fifo_queue_is_a_delivery(delivery):
    assert parse_address(delivery) == delivery.removeprefix("sqs://")


@pytest.mark.parametrize(
    "delivery",
    [
        "sqs://filmgate",
        "sqs://",
        "filmgate.fifo",
        "sqs://film gate.fifo",
        "https://x.fifo",
        "sqs://{tenant}.fifo",
    ],
)
def test_anything_else_is_refused_by_name(delivery):
    with pytest.raises(SettingsError, match="FIFO queue") as caught:
        parse_address(delivery)
    assert caught.value.option == "queue.waker"


def test_each_lane_has_a_name_that_sqs_allows():
    assert (
        fill_places("film-{route}-{model}.fifo", Route.GPU, "Wan-AI/Wan2.1") == "film-gpu-Wan-AI-Wan2-1.fifo"
    )
    assert fill_places("film.fifo", Route.GPU, "wan") == "film.fifo"


def test_without_boto3_the_remedy_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(SettingsError, match=r'pip install "filmgate\[aws\]"') as caught:
        SqsQueues(QueueSettings(delivery="sqs://filmgate.fifo"))
    assert "\n" not in str(caught.value)


def test_without_a_region_the_setting_is_named(monkeypatch):
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with pytest.raises(SettingsError, match=r"queue\.region"):
        SqsQueues(QueueSettings(delivery="sqs://filmgate.fifo"))
