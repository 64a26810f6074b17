"""S3 fails during an upload: the clip is retried until it is complete, and no partial upload remains."""

import pytest

from filmgate.jobs import JobState
from tests.proxy import Proxy, s3_error

CHUNK_BYTES = 1_500_000  # nine chunks: three parts of a multipart upload
PART_TWO = r"PUT .*clip-.*partNumber=2"


@pytest.fixture
def proxy(aws_url):
    with Proxy(aws_url) as proxy:
        yield proxy


@pytest.fixture
def site(make_site, cloud, proxy):
    return make_site(**cloud.environ(endpoint=proxy.url))


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="closed connections"),
        pytest.param(s3_error("InternalError", 500), id="500", marks=pytest.mark.chaos),
        pytest.param(s3_error("SlowDown", 503), id="throttled", marks=pytest.mark.chaos),
        pytest.param(s3_error("AccessDenied", 403), id="no permission", marks=pytest.mark.chaos),
    ],
)
def test_a_clip_is_complete_after_s3_has_failed(site, proxy, cloud, how):
    job = site.enqueue()
    fault = proxy.fail(PART_TWO, **how)
    site.start_worker(chunk_bytes=CHUNK_BYTES)
    # The early upload and the first upload after it are aborted; S3 recovers during a later one.
    site.wait_until(lambda: sum(r.startswith("DELETE") and "uploadId" in r for r in list(proxy.requests)) > 1)
    site.wait_until(lambda hits=fault.hits: fault.hits > hits)
    assert not site.find(job).state.is_final
    proxy.heal()
    done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
    assert site.is_whole(job, CHUNK_BYTES)
    site.wait_until(lambda: site.parts(job) == ["clip-1.mp4", "spritesheet-1.jpg", "thumbnail-1.jpg"])
    assert cloud.uploads() == []
    log = site.log.read_text()
    assert "a write failed; retrying" in log
    assert ('"permission": "s3:PutObject"' in log) is (how.get("status") == 403)


def test_the_upload_of_a_killed_worker_is_gone_when_the_job_is_done(site, proxy, cloud):
    job = site.enqueue()
    fault = proxy.fail(PART_TWO)
    proxy.fail("DELETE .*uploadId")  # the worker cannot abort an upload before it is killed
    worker = site.start_worker(chunk_bytes=CHUNK_BYTES)
    site.wait_until(lambda: fault.hits > 0)
    site.kill(worker)
    assert cloud.uploads() != []
    proxy.heal()
    site.start_worker(chunk_bytes=CHUNK_BYTES)
    done = site.wait_for(job)
    assert (done.state, done.clip.part, site.is_whole(job, CHUNK_BYTES)) == (
        JobState.COMPLETED,
        "clip-2.mp4",
        True,
    )
    site.wait_until(lambda: cloud.uploads() == [])
