"""CUDA streams: torch has 32 of them, so each role has one for the life of the process."""

import pytest
import torch

from filmgate.pipeline.transfer import streams
from filmgate.pipeline.transfer.streams import CudaStreams, named_stream

GPU = torch.device("cuda", 0)


class FakeStream:
    device = GPU

    def wait_event(self, event):
        pass


class FakeEvent:
    """Its work is done once `is_done` is set."""

    is_done = True

    def __init__(self, **_):
        pass

    def record(self, stream):
        pass

    def query(self):
        return FakeEvent.is_done


class CurrentStream:
    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        return self.stream

    def __exit__(self, *_):
        pass


@pytest.fixture
def created(monkeypatch):
    """The streams that were created."""
    made = []
    streams._named_stream.cache_clear()
    streams.free_streams.cache_clear()
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: made.append(FakeStream()) or made[-1])
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: FakeStream())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "stream", CurrentStream)
    monkeypatch.setattr(FakeEvent, "is_done", True)
    yield made
    streams._named_stream.cache_clear()
    streams.free_streams.cache_clear()


def prepare(opened):
    with opened.beside_compute():
        pass


def test_a_thousand_clips_use_the_same_few_streams(created):
    for _ in range(1000):
        prepare(CudaStreams(GPU))
        CudaStreams(GPU, "copy latents")
        named_stream(torch.device("cuda"), "decode ahead")
    assert len(created) == 4


def test_models_that_prepare_at_the_same_time_have_different_streams(created):
    one, other = CudaStreams(GPU), CudaStreams(GPU)
    before = len(created)
    with one.beside_compute(), other.beside_compute():
        assert len(created) == before + 2
    prepare(one)
    prepare(other)
    assert len(created) == before + 2


def test_a_stream_is_not_used_again_while_work_on_its_memory_is_queued(created, monkeypatch):
    one, other = CudaStreams(GPU), CudaStreams(GPU)
    monkeypatch.setattr(FakeEvent, "is_done", False)
    prepare(one)
    before = len(created)
    prepare(other)  # another model must not take the stream of the first
    assert len(created) == before + 1
    monkeypatch.setattr(FakeEvent, "is_done", True)
    prepare(other)
    assert len(created) == before + 1
