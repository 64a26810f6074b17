"""Spot notices of the EC2 metadata service."""

from contextlib import closing

import pytest

from filmgate.settings import WorkerSettings
from filmgate.worker import interruption
from filmgate.worker.interruption import InterruptionWatch, MetadataService, watched_interruptions
from tests.fake_metadata import FakeMetadata


@pytest.fixture
def metadata():
    fake = FakeMetadata()
    yield fake
    fake.close()


@pytest.fixture
def service(metadata, monkeypatch):
    monkeypatch.setattr(interruption, "_TIMEOUT_SECONDS", 60.0)
    with closing(MetadataService(metadata.url)) as service:
        yield service


def test_without_a_notice_there_is_no_interruption_and_one_token_serves_many_questions(metadata, service):
    assert [service.read_interruption() for _ in range(3)] == [None] * 3
    assert len(metadata.tokens) == 1


def test_a_notice_says_when_and_an_expired_token_is_replaced(metadata, service):
    assert service.read_interruption() is None
    metadata.expire_tokens()
    ends_at = metadata.interrupt(seconds=120)
    assert service.read_interruption() == ends_at


def test_a_notice_drains_once_with_time_left_for_the_upload(metadata, service):
    drained = []
    watch = InterruptionWatch(service, drained.append)
    watch.check()
    assert (drained, watch.interrupted_at) == ([], None)
    metadata.interrupt(seconds=120)
    watch.check()
    watch.check()
    (seconds,) = drained
    assert 0 < seconds <= 100


def test_a_service_that_does_not_answer_is_logged_once_and_drains_nothing(metadata, caplog):
    drained = []
    with closing(MetadataService("http://127.0.0.1:9")) as nowhere:
        watch = InterruptionWatch(nowhere, drained.append)
        watch.check()
        watch.check()
    assert (drained, len(caplog.records)) == ([], 1)


def test_the_first_question_comes_before_the_first_lease(metadata):
    metadata.interrupt()
    drained = []
    settings = WorkerSettings(interruption="imds", metadata_endpoint=metadata.url)
    with watched_interruptions(settings, drained.append) as watch:
        assert (len(drained), watch.interrupted_at is None) == (1, False)
    with watched_interruptions(WorkerSettings(), drained.append) as watch:
        assert watch is None
