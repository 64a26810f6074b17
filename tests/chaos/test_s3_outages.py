"""S3 fails in the middle of a clip: the clip waits and ends whole, and no half of it stays behind."""

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
        pytest.param({}, id="connections are cut"),
        pytest.param(s3_error("InternalError", 500), id="500", marks=pytest.mark.chaos),
        pytest.param(s3_error("SlowDown", 503), id="throttled", marks=pytest.mark.chaos),
        pytest.param(s3_error("AccessDenied", 403), id="a permission is lost", marks=pytest.mark.chaos),
    ],
)
def test_a_clip_waits_while_s3_fails_and_ends_whole(site, proxy, cloud, how):
    job = site.enqueue()
    hurt = proxy.fail(PART_TWO, **how)
    site.start_worker(chunk_bytes=CHUNK_BYTES)
    # The try while it was made and the first one after that were taken back; S3 recovers during a later one.
    site.wait_until(lambda: sum(r.startswith("DELETE") and "uploadId" in r for r in list(proxy.requests)) > 1)
    site.wait_until(lambda hits=hurt.hits: hurt.hits > hits)
    assert not site.find(job).state.is_final
    proxy.heal()
    done = site.wait_for(job)
    assert (done.state, done.attempt) == (JobState.COMPLETED, 1)
    assert site.is_whole(job, CHUNK_BYTES)
    site.wait_until(lambda: site.parts(job) == ["clip-1.mp4", "spritesheet-1.jpg", "thumbnail-1.jpg"])
    assert cloud.uploads() == []
    said = site.log.read_text()
    assert "could not store the clip; retrying" in said
    assert ('"permission": "s3:PutObject"' in said) is (how.get("status") == 403)


def test_a_worker_killed_between_two_parts_leaves_nothing_once_the_job_is_done(site, proxy, cloud):
    job = site.enqueue()
    hurt = proxy.fail(PART_TWO)
    worker = site.start_worker(chunk_bytes=CHUNK_BYTES)
    site.wait_until(lambda: hurt.hits > 0)
    site.kill(worker)
    assert len(cloud.uploads()) == 1
    proxy.heal()
    site.start_worker(chunk_bytes=CHUNK_BYTES)
    done = site.wait_for(job)
    assert (done.state, done.clip.part, site.is_whole(job, CHUNK_BYTES)) == (
        JobState.COMPLETED,
        "clip-2.mp4",
        True,
    )
    site.wait_until(lambda: cloud.uploads() == [])
