"""The object store on S3, beyond the contract: early parts, versions, keys, links and errors."""

import base64
import json
import re
import threading
import time

import httpx
import pytest

from filmgate.aws import clients
from filmgate.aws.clients import ClientOptions
from filmgate.aws.s3_location import S3Location
from filmgate.errors import KeyRefused, ObjectCorrupt, SettingsError, StoreForbidden, StoreUnavailable
from filmgate.jobs import Reason, TenantId, new_job_id
from filmgate.store.base import UNPUBLISHED_SECONDS, ObjectName
from filmgate.store.s3.multipart import PARALLEL_PARTS, PART_BYTES
from filmgate.store.s3.store import S3Store, open_s3_store
from filmgate.telemetry.metrics import THROTTLE_COUNTER
from tests.aws import CREDENTIALS, REGION
from tests.proxy import LinkGuard, Proxy, s3_error
from tests.stores import parts_of
from tests.waiting import wait_until

ACME, GLOBEX = TenantId("acme"), TenantId("globex")
JOB = new_job_id()
CLIP = ObjectName(ACME, JOB, "clip-1.mp4")
CLIP_KEY = f"films/{CLIP}"


@pytest.fixture
def store(cloud):
    return cloud.open_store()


@pytest.fixture
def proxy(aws_url):
    with Proxy(aws_url) as proxy:
        yield proxy


@pytest.fixture
def far(cloud, proxy, monkeypatch):
    """The store behind the proxy, with fewer attempts per request."""
    monkeypatch.setattr(clients, "DEFAULT_OPTIONS", ClientOptions(max_attempts=2))
    return cloud.open_store(endpoint=proxy.url)


def read(store, name, *span):
    return b"".join(store.read(name, *span))


def start_upload(cloud, name=CLIP):
    """Starts a multipart upload and leaves it unfinished."""
    started = cloud.s3.create_multipart_upload(Bucket=cloud.bucket, Key=f"films/{name}")
    where = {"Bucket": cloud.bucket, "Key": f"films/{name}", "UploadId": started["UploadId"]}
    cloud.s3.upload_part(**where, PartNumber=1, Body=b"x" * 100)


def test_parts_are_sent_while_the_rest_is_still_being_produced(far, proxy):
    seen_at_the_end = []

    def frames():
        for _ in range(3):
            yield b"x" * PART_BYTES
        wait_until(lambda: sum("partNumber" in request for request in proxy.requests) >= 3)
        seen_at_the_end.extend(proxy.requests)
        yield b"the last frame"

    far.put(CLIP, frames())
    assert sum("partNumber" in request for request in seen_at_the_end) == 3
    assert not any("uploadId" in request and request.startswith("POST") for request in seen_at_the_end)
    assert read(far, CLIP)[-14:] == b"the last frame"


def test_with_a_late_head_all_parts_but_the_first_are_sent_early(far, proxy):
    numbers = []

    def sent():
        return [
            re.search(r"partNumber=(\d+)", request)[1] for request in proxy.requests if "partN" in request
        ]

    def frames():
        for _ in range(4):
            yield b"x" * PART_BYTES
        wait_until(lambda: len(sent()) >= 3)
        numbers.extend(sent())

    far.put(CLIP, frames(), late_head=lambda: b"index", head_bytes=5)
    assert (sorted(numbers), sent()[-1]) == (["2", "3", "4"], "1")
    assert read(far, CLIP, 0, 6) == b"indexx"


def test_memory_is_bounded_when_s3_is_slower_than_the_encoder(cloud, far, proxy, monkeypatch):
    gate, made = threading.Event(), []
    send = far._client.upload_part
    monkeypatch.setattr(far._client, "upload_part", lambda **request: gate.wait(60) and send(**request))

    def frames():
        for number in range(12):
            made.append(number)
            yield b"x" * PART_BYTES

    writing = threading.Thread(target=far.put, args=(CLIP, frames()))
    writing.start()
    wait_until(lambda: len(made) > PARALLEL_PARTS)
    time.sleep(0.3)  # more frames would be made now; on a slow machine this can only miss them, not fail
    held = len(made)
    gate.set()
    writing.join(60)
    assert held == PARALLEL_PARTS + 1
    assert far.stat(CLIP).size_bytes == 12 * PART_BYTES


def test_a_small_object_is_one_request(far, proxy):
    far.put(CLIP, [b"a fragment"])
    assert len(proxy.requests) == 1
    assert proxy.requests[0].startswith("PUT /")


@pytest.mark.parametrize("size", [10, PART_BYTES + 10])
def test_every_object_has_its_tenants_key_and_a_checksum(cloud, store, size):
    store.put(CLIP, [b"x" * size])
    head = cloud.s3.head_object(Bucket=cloud.bucket, Key=CLIP_KEY, ChecksumMode="ENABLED")
    assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", cloud.key.of(ACME))
    assert (head["ContentType"], len(base64.b64decode(head["ChecksumSHA256"]))) == ("video/mp4", 32)


def test_the_tenant_is_the_encryption_context(store):
    headers = store._headers(CLIP)
    assert json.loads(base64.b64decode(headers["SSEKMSEncryptionContext"])) == {"tenant": "acme"}
    assert headers["BucketKeyEnabled"] is False


def test_without_a_key_template_the_buckets_default_encryption_applies(cloud):
    store = cloud.open_store(kms_key="")
    store.put(CLIP, [b"x"])
    assert "SSEKMSKeyId" not in cloud.s3.head_object(Bucket=cloud.bucket, Key=CLIP_KEY)


def test_deleting_a_job_deletes_old_versions_delete_markers_and_unfinished_uploads(cloud, store):
    for content in (b"first", b"second"):
        store.put(CLIP, [content])
    other = ObjectName(ACME, new_job_id(), "clip-1.mp4")
    store.put(other, [b"stays"])
    cloud.s3.delete_object(Bucket=cloud.bucket, Key=CLIP_KEY)
    start_upload(cloud)
    assert len(cloud.versions()) == 4
    assert list(dict(store.jobs(ACME))) == sorted([JOB, other.job_id])
    assert parts_of(store, ACME, JOB) == []
    assert [part.name for part in parts_of(store, ACME, other.job_id)] == [other]
    assert store.delete(ACME, JOB) == 0  # no object of it had a current version
    assert [version["Key"] for version in cloud.versions()] == [f"films/{other}"]
    assert (cloud.uploads(), list(dict(store.jobs(ACME)))) == ([], [other.job_id])


def test_more_than_one_page_of_objects_is_listed_and_deleted(cloud, store, monkeypatch):
    monkeypatch.setattr("filmgate.store.s3.versions._BATCH", 3)
    store._client.meta.events.register(
        "before-parameter-build.s3.ListObjectVersions", lambda params, **_: params.update(MaxKeys=4)
    )
    for number in range(10):
        store.put(ObjectName(ACME, JOB, f"live/1/{number:06d}"), [b"x"])
    assert len(parts_of(store, ACME, JOB)) == 10
    assert store.delete(ACME, JOB, "live/") == 10
    assert cloud.versions() == []


def test_foreign_objects_under_the_prefix_are_skipped(cloud, store):
    for key in (f"films/{ACME}/{JOB}/UPPER", f"films/{ACME}/not-a-job/x", "films/stray"):
        cloud.s3.put_object(Bucket=cloud.bucket, Key=key, Body=b"")
    assert (list(dict(store.jobs(ACME))), parts_of(store, ACME, JOB)) == ([JOB], [])


def test_the_sweep_aborts_old_unfinished_uploads_and_keeps_recent_ones(cloud, store):
    """moto dates every upload to November 2010, so the test changes the store's clock instead."""
    start_upload(cloud)
    started = cloud.uploads()[0]["Initiated"].timestamp()
    client, location = store._client, S3Location(cloud.bucket, "films/")
    assert S3Store(client, location, None, lambda: started + 3600).sweep(UNPUBLISHED_SECONDS) == 0
    elsewhere = S3Location(cloud.bucket, "other/")
    assert S3Store(client, elsewhere, None).sweep(UNPUBLISHED_SECONDS) == 0
    assert len(cloud.uploads()) == 1
    assert (store.sweep(UNPUBLISHED_SECONDS), store.sweep(UNPUBLISHED_SECONDS)) == (1, 0)
    assert cloud.uploads() == []


def test_a_part_that_keeps_failing_leaves_no_upload(cloud, far, proxy):
    far.put(CLIP, [b"old"])
    proxy.fail(r"PUT .*partNumber=2", **s3_error("InternalError", 500))
    with pytest.raises(StoreUnavailable) as caught:
        far.put(CLIP, [b"new" * 4_000_000])
    assert caught.value.retryable
    assert (read(far, CLIP), cloud.uploads()) == (b"old", [])


def test_a_part_that_fails_once_is_sent_again(cloud, far, proxy):
    fault = proxy.fail(r"PUT .*partNumber=2", times=1)  # the connection is cut
    far.put(CLIP, [b"new" * 4_000_000])
    assert (fault.hits, far.stat(CLIP).size_bytes, cloud.uploads()) == (1, 12_000_000, [])


def test_an_upload_whose_abort_failed_is_aborted_by_the_sweep(cloud, far, proxy, store):
    proxy.fail(r"PUT .*partNumber=2", **s3_error("InternalError", 500))
    proxy.fail(r"^DELETE ", **s3_error("ServiceUnavailable", 503))
    with pytest.raises(StoreUnavailable):
        far.put(CLIP, [b"new" * 4_000_000])
    assert len(cloud.uploads()) == 1
    assert (store.sweep(UNPUBLISHED_SECONDS), cloud.uploads()) == (1, [])


def test_a_read_that_breaks_off_resumes_at_the_same_byte(far, proxy):
    data = bytes(range(256)) * 20_000
    far.put(CLIP, [data])
    cut = proxy.fail(r"^GET ", cut_after_bytes=1_500_000, times=2)
    assert read(far, CLIP, 1000, 5_000_000) == data[1000:5_000_000]
    assert cut.hits == 2


def test_a_read_that_breaks_off_never_resumes_in_another_object(far, proxy):
    far.put(CLIP, [b"old" * 1_000_000])
    proxy.fail(r"^GET ", cut_after_bytes=1_500_000, times=1)
    reading = far.read(CLIP)
    next(reading)
    far.put(CLIP, [b"new" * 1_000_000])
    with pytest.raises(StoreUnavailable, match="PreconditionFailed"):
        list(reading)


def test_bytes_that_do_not_match_their_checksum_are_not_served(far, proxy):
    far.put(CLIP, [b"the clip"])
    body = b"the clap"
    stored = far._client.head_object(Bucket=far._bucket, Key=CLIP_KEY, ChecksumMode="ENABLED")
    assert stored["ChecksumSHA256"]
    proxy.alter(r"^GET ", body)
    with pytest.raises(ObjectCorrupt):
        read(far, CLIP)


DENIED = (
    "User: arn:aws:iam::123456789012:user/worker is not authorized to perform: kms:GenerateDataKey "
    "on resource: arn:aws:kms:eu-central-1:123456789012:key/abc because no identity-based policy allows it"
)


@pytest.mark.parametrize(
    ("error", "kind", "message", "reason"),
    [
        (s3_error("SlowDown", 503), StoreUnavailable, "S3 PutObject failed: SlowDown", Reason.STORE_FAILED),
        (s3_error("InternalError", 500), StoreUnavailable, "InternalError", Reason.STORE_FAILED),
        (s3_error("NoSuchBucket", 404), StoreUnavailable, "NoSuchBucket", Reason.STORE_FAILED),
        (s3_error("AccessDenied", 403), StoreForbidden, "s3:PutObject is missing", Reason.STORE_FAILED),
        (
            s3_error("AccessDenied", 403, DENIED),
            StoreForbidden,
            "kms:GenerateDataKey is missing on arn:aws:kms:eu-central-1:123456789012:key/abc",
            Reason.STORE_FAILED,
        ),
        (s3_error("KMS.DisabledException", 400), KeyRefused, "KMS.DisabledException", Reason.KEY_REFUSED),
        (s3_error("KMS.KMSInvalidStateException", 400), KeyRefused, "InvalidState", Reason.KEY_REFUSED),
        (s3_error("KMS.NotFoundException", 400), KeyRefused, "KMS.NotFound", Reason.KEY_REFUSED),
    ],
)
def test_every_s3_error_has_its_own_error_and_reason(far, proxy, error, kind, message, reason):
    proxy.fail(r"^PUT ", **error)
    with pytest.raises(kind, match=message) as caught:
        far.put(CLIP, [b"x"])
    assert (Reason.of(caught.value), caught.value.retryable) == (reason, kind is not KeyRefused)


def test_every_throttled_attempt_is_counted(far, proxy):
    """Also those that boto3 repeats."""
    before = THROTTLE_COUNTER.labels("s3")._value.get()
    proxy.fail(r"^PUT ", **s3_error("SlowDown", 503))
    with pytest.raises(StoreUnavailable):
        far.put(CLIP, [b"x"])
    attempts = sum(request.startswith("PUT ") for request in proxy.requests)
    assert THROTTLE_COUNTER.labels("s3")._value.get() == before + attempts > before


def test_an_unreachable_s3_is_unavailable(cloud, monkeypatch):
    monkeypatch.setattr(clients, "DEFAULT_OPTIONS", ClientOptions(max_attempts=1))
    with Proxy(cloud.url) as gone:
        store = cloud.open_store(endpoint=gone.url)
    for call in (
        lambda: store.put(CLIP, [b"x"]),
        lambda: store.read(CLIP),
        lambda: parts_of(store, ACME, JOB),
    ):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            call()


def test_objects_that_s3_does_not_delete_are_an_error(far, proxy):
    far.put(CLIP, [b"x"])
    answer = b"<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    proxy.fail(r"^POST .*delete", status=200, body=answer)
    with pytest.raises(StoreForbidden, match="s3:DeleteObjectVersion is missing"):
        far.delete(ACME, JOB)


class TestLinks:
    """moto accepts any link; the proxy checks signature and expiry as S3 does."""

    @pytest.fixture
    def clock(self):
        return {"ahead": 0.0}

    @pytest.fixture
    def link(self, proxy, far, clock):
        far.put(CLIP, [b"clip of acme"])
        far.put(ObjectName(GLOBEX, JOB, "clip-1.mp4"), [b"clip of globex"])
        secret = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        proxy.guard = LinkGuard(secret, REGION, lambda: time.time() + clock["ahead"])
        return far.link(CLIP, 900)

    def test_a_link_serves_one_object_whole_or_in_ranges_without_a_key(self, link):
        assert httpx.get(link).content == b"clip of acme"
        part = httpx.get(link, headers={"Range": "bytes=8-11"})
        assert (part.status_code, part.content) == (206, b"acme")
        assert httpx.get(link).headers["content-type"] == "video/mp4"

    def test_a_link_expires_after_its_seconds(self, link, clock):
        clock["ahead"] = 890.0
        assert httpx.get(link).status_code == 200
        clock["ahead"] = 905.0
        assert (httpx.get(link).status_code, httpx.get(link).text) == (403, "Request has expired")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("/acme/", "/globex/"),
            ("X-Amz-Expires=900", "X-Amz-Expires=604800"),
            ("clip-1.mp4", "clip-2.mp4"),
            ("X-Amz-Signature=", "X-Amz-Signature=0"),
            (f"%2F{REGION}%2F", "%2Fus-east-1%2F"),
        ],
    )
    def test_an_altered_link_is_rejected(self, link, old, new):
        assert old in link
        answer = httpx.get(link.replace(old, new))
        assert (answer.status_code, answer.text) == (403, "SignatureDoesNotMatch")

    def test_a_link_allows_only_get(self, link):
        for request in (httpx.put, httpx.delete):
            assert request(link).status_code == 403

    def test_no_link_is_valid_longer_than_s3_allows(self, far):
        assert "X-Amz-Expires=604800" in far.link(CLIP, 10_000_000)
        assert "X-Amz-Expires=1&" in far.link(CLIP, 0.2)


@pytest.mark.parametrize("url", ["s3://", "s3:///films", "s3://bucket/x?y=1", "s3://bucket#f"])
def test_a_url_without_a_bucket_is_a_settings_error(cloud, url):
    with pytest.raises(SettingsError, match="s3://BUCKET/PREFIX"):
        open_s3_store(cloud.settings(url=url))


@pytest.mark.parametrize("template", ["{tenant}", "alias/{job}-{tenant}", "alias/{"])
def test_a_key_template_with_an_unknown_placeholder_is_a_settings_error(cloud, template):
    with pytest.raises(SettingsError, match="alias/filmgate-{tenant}"):
        open_s3_store(cloud.settings(kms_key=template))
