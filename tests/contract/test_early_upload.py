"""A clip that is uploaded while it is encoded, on every store: complete at its end, or not stored at all."""

from contextlib import closing
from dataclasses import replace

import pytest

from filmgate.errors import StoreFull
from filmgate.jobs import TenantId, new_job_id
from filmgate.store.base import ObjectName
from filmgate.telemetry.logs import Log
from filmgate.worker.attempt import EarlyUpload
from filmgate.worker.base import ClipSource, EarlyClip, Fragment, RenderTask
from tests.pattern_runner import PatternRunner, pattern_clip
from tests.stores import parts_of
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
    task = RenderTask(replace(SPEC, model="pattern"))
    with closing(PatternRunner(chunk_bytes=CHUNK_BYTES).render(task)) as outputs:
        yield outputs


@pytest.fixture
def start(outputs):
    """Pulls the runner up to its EarlyClip and starts the upload."""
    started = []

    def start(store):
        clip = next(output for output in outputs if isinstance(output, EarlyClip))
        started.append(EarlyUpload(store, CLIP, clip, LOG))
        return started[-1]

    yield start
    for early in started:
        early.cancel()


def test_a_clip_is_complete_when_its_last_frame_is_encoded(rig, store, outputs, start):
    early = start(store)
    assert isinstance(list(outputs)[-1], ClipSource)
    stored, clip = early.take(), pattern_clip(SPEC, CHUNK_BYTES)
    assert (stored.size_bytes, b"".join(store.read(CLIP))) == (len(clip), clip)
    assert rig.unpublished() == []


def test_the_result_can_be_taken_once(store, outputs, start):
    early = start(store)
    list(outputs)
    assert (early.take().name, early.take()) == (CLIP, None)


def test_a_cancelled_upload_leaves_nothing_in_the_store(rig, store, outputs, start):
    early = start(store)
    fragments = (output for output in outputs if isinstance(output, Fragment))
    for _ in range(6):
        next(fragments)
    early.cancel()
    assert (parts_of(store, ACME, JOB), rig.unpublished()) == ([], [])


def test_a_runner_that_stops_ends_the_upload(rig, store, outputs, start, no_thread_left):
    early = start(store)
    next(output for output in outputs if isinstance(output, Fragment))
    outputs.close()
    assert early.take() is None
    assert (parts_of(store, ACME, JOB), rig.unpublished()) == ([], [])


def test_a_store_that_fails_does_not_fail_the_clip(outputs, start):
    class Full:
        def put(self, name, chunks, **options):
            raise StoreFull("no room")

    early = start(Full())
    assert isinstance(list(outputs)[-1], ClipSource)
    assert early.take() is None
