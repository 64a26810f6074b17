"""A clip that is put while it is made, on every store: whole at its end, or not at all."""

import time
from contextlib import closing
from dataclasses import replace

import pytest

from filmgate.errors import StoreFull
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName
from filmgate.telemetry.logs import Log
from filmgate.worker.base import ClipSource, EarlyClip, Fragment, RenderTask
from filmgate.worker.early_upload import EarlyUpload
from filmgate.worker.pattern_runner import PatternRunner, pattern_clip
from tests.tickets import SPEC

ACME, JOB = TenantId("acme"), new_job_id()
CLIP = ObjectName(ACME, JOB, "clip-1.mp4")
CHUNK_BYTES = 1_500_000
LOG = Log("test")


@pytest.fixture
def store(rig):
    return rig.store


@pytest.fixture
def outputs():
    task = RenderTask(JOB, replace(SPEC, model="pattern"))
    with closing(PatternRunner(chunk_bytes=CHUNK_BYTES).render(task)) as outputs:
        yield outputs


def start(outputs, store):
    """Pull the runner to its offer and take it up."""
    clip = next(output for output in outputs if isinstance(output, EarlyClip))
    return EarlyUpload(store, CLIP, clip, LOG)


def test_a_clip_is_whole_when_its_last_frame_is_made(rig, store, outputs):
    early = start(outputs, store)
    assert isinstance(list(outputs)[-1], ClipSource)
    stored, clip = early.take(), pattern_clip(SPEC, CHUNK_BYTES)
    assert (stored.size_bytes, b"".join(store.read(CLIP))) == (len(clip), clip)
    assert rig.unpublished() == []


def test_it_can_be_taken_once(store, outputs):
    early = start(outputs, store)
    list(outputs)
    assert (early.take().name, early.take()) == (CLIP, None)


def test_a_clip_that_is_given_up_leaves_nothing(rig, store, outputs):
    early = start(outputs, store)
    fragments = (output for output in outputs if isinstance(output, Fragment))
    for _ in range(6):
        next(fragments)
    early.cancel()
    assert (store.parts(ACME, JOB), rig.unpublished()) == ([], [])


def test_a_runner_that_dies_leaves_nothing_and_nobody_waiting(rig, store, outputs, no_thread_left):
    early = start(outputs, store)
    next(output for output in outputs if isinstance(output, Fragment))
    outputs.close()
    began = time.monotonic()
    assert early.take() is None
    assert time.monotonic() - began < 10
    assert (store.parts(ACME, JOB), rig.unpublished()) == ([], [])


def test_a_store_that_fails_is_no_failure_of_the_clip(outputs):
    class Full:
        def put(self, name, chunks, **options):
            raise StoreFull("no room")

    early = start(outputs, Full())
    assert isinstance(list(outputs)[-1], ClipSource)
    assert early.take() is None
