"""Admission over HTTP: reference images, back-pressure, quotas, screening and estimates."""

import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from filmgate.admission.uploads.images import clean_image
from filmgate.errors import (
    InvalidImage,
    KeyringUnavailable,
    ModelNotServed,
    QueueUnavailable,
    UploadTooLarge,
    UrlNotAllowed,
)
from filmgate.jobs import ScreeningAction, Share
from filmgate.models.requests import Upload
from filmgate.pipeline.requests import to_clip_request
from filmgate.settings import AdmissionSettings
from filmgate.store.base import UPLOAD_PART, ObjectName
from tests.images import bomb, png
from tests.moderation_server import FORBIDDEN, moderation_server
from tests.service import running, settings_for
from tests.tickets import make_spec
from tests.waiting import wait_until

SETTINGS = AdmissionSettings(image_max_pixels=10_000)


def upload(data):
    return Upload("input_reference", data)


def test_an_image_is_encoded_again_without_metadata():
    exif = Image.Exif()
    exif[0x010E] = "secret location"
    exif[0x0112] = 6  # rotated
    out = io.BytesIO()
    Image.new("RGBA", (20, 10), (1, 2, 3, 4)).convert("RGB").save(out, "JPEG", exif=exif)
    cleaned = clean_image(upload(out.getvalue()), SETTINGS)
    image = Image.open(io.BytesIO(cleaned))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (10, 20))
    assert not image.getexif()
    assert b"secret location" not in cleaned


def seen_by_the_model(image, kind="PNG", **options):
    """The left pixel of an image after admission, and as `filmgate generate --image` reads it."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    cleaned = Image.open(io.BytesIO(clean_image(upload(out.getvalue()), SETTINGS)))
    request = to_clip_request(make_spec(width=32, height=16, steps=2, seed=1, guidance=1.0), out.getvalue())
    assert request.image.getpixel((0, 0)) == cleaned.getpixel((0, 0))
    return cleaned.getpixel((0, 0))


def test_an_image_with_16_bits_of_grey_keeps_its_shades():
    """Pillow alone makes white of everything above 255 of 65,535."""
    for level, shade in ((0, 0), (32_896, 128), (65_535, 255)):
        assert seen_by_the_model(Image.new("I;16", (32, 16), level)) == (shade, shade, shade)


def test_transparent_parts_of_an_image_are_white():
    """Not the colour that the file has there, which no viewer shows. Optimisers write palettes with alpha."""
    erased = Image.new("RGBA", (32, 16), (200, 0, 0, 0))
    erased.paste((0, 200, 0, 255), (16, 0, 32, 16))
    for image in (erased, erased.quantize(4)):
        assert seen_by_the_model(image) == (255, 255, 255)
    assert seen_by_the_model(erased, "WEBP", lossless=True) == (255, 255, 255)


def test_a_photo_with_a_damaged_exif_block_is_read():
    broken = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0\0\0"  # ends within its table
    out = io.BytesIO()
    Image.new("RGB", (32, 16)).save(out, "JPEG", exif=broken)
    assert clean_image(upload(out.getvalue()), SETTINGS).startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_the_image_format_is_detected_from_the_content(kind):
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, kind)
    assert clean_image(upload(out.getvalue()), SETTINGS).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a" + b"\0" * 50,
        b"<svg/>",
        b"\x89PNG\r\n\x1a\n",
        png()[:40],
        b"\xff\xd8\xff" + b"\0" * 99,
        bomb(),
    ],
    ids=["empty", "gif", "svg", "signature only", "truncated", "damaged", "bomb"],
)
def test_data_that_is_not_a_valid_image_is_rejected(data):
    with pytest.raises(InvalidImage):
        clean_image(upload(data), SETTINGS)


def test_pixels_and_bytes_are_limited():
    with pytest.raises(InvalidImage, match="pixels"):
        clean_image(upload(png(200, 200)), SETTINGS)
    with pytest.raises(UploadTooLarge):
        clean_image(upload(b"x" * 2000), AdmissionSettings(image_max_bytes=1024))


def test_an_uploaded_image_is_stored_with_its_job(service, client):
    files = {"input_reference": ("any-name.exe", png(), "application/x-msdownload")}
    video = client.post("/v1/videos", data={"prompt": "x"}, files=files).json()
    stored = b"".join(service.services.store.read(ObjectName("local", video["id"], UPLOAD_PART)))
    assert Image.open(io.BytesIO(stored)).size == (8, 8)
    rejected = client.post("/v1/videos", data={"prompt": "x"}, files={"input_reference": ("a.png", b"no")})
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (400, "invalid_image")


def test_a_repeated_upload_with_the_same_key_stores_no_other_object(service, client):
    before = set(dict(service.services.store.jobs("local")))
    files = {"input_reference": ("a.png", png(), "image/png")}
    send = {"data": {"prompt": "repeated"}, "files": files, "headers": {"Idempotency-Key": "repeated"}}
    ids = {client.post("/v1/videos", **send).json()["id"] for _ in range(3)}
    assert len(ids) == 1
    assert set(dict(service.services.store.jobs("local"))) - before == ids


@pytest.mark.parametrize(
    ("error", "has_upload"),
    [
        (ModelNotServed("the last worker has left"), False),
        (KeyringUnavailable("no key"), False),
        # The job may exist: its upload must not be deleted.
        (QueueUnavailable("the connection was lost during the commit"), True),
    ],
    ids=["not served", "no key", "no database"],
)
def test_an_upload_is_deleted_if_its_request_was_rejected(service, client, monkeypatch, error, has_upload):
    def fail(*_ticket):
        raise error

    before = set(dict(service.services.store.jobs("local")))
    monkeypatch.setattr(type(service.services.queue), "enqueue", fail)
    files = {"input_reference": ("a.png", png(), "image/png")}
    response = client.post("/v1/videos", data={"prompt": "rejected"}, files=files)
    assert response.json()["error"]["code"] == error.code
    assert (set(dict(service.services.store.jobs("local"))) != before) is has_upload


def test_a_url_with_a_private_address_is_rejected(client):
    body = {"prompt": "x", "input_reference": {"image_url": "http://169.254.169.254/latest/meta-data"}}
    responses = [
        client.post("/v1/videos", json=body),
        client.post("/v1/videos", data={"prompt": "x", "input_reference[image_url]": "http://localhost/a"}),
    ]
    assert {(r.status_code, r.json()["error"]["code"]) for r in responses} == {(400, "url_not_allowed")}


def test_a_backlog_beyond_the_promise_is_a_429_with_a_retry_after(tmp_path):
    with (
        running(settings_for(tmp_path, admission__promise_seconds=20.0)) as service,
        service.client() as client,
    ):
        responses = []
        while not responses or responses[-1].status_code == 200:
            assert len(responses) < 50
            key = {"Idempotency-Key": str(len(responses))}
            responses.append(client.post("/v1/videos", json={"prompt": "x"}, headers=key))
        rejected = responses[-1]
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (429, "overloaded")
        assert 1 <= int(rejected.headers["retry-after"]) <= 20
        # A retry of an accepted request returns its job, because the first response may have been lost.
        again = client.post("/v1/videos", json={"prompt": "x"}, headers={"Idempotency-Key": "0"})
        assert again.json()["id"] == responses[0].json()["id"]
        with service.client(service.add_tenant("other")) as other:
            assert other.post("/v1/videos", json={"prompt": "x"}).status_code == 200


def test_a_job_longer_than_the_promise_is_accepted_only_if_it_starts_at_once(tmp_path):
    with (
        running(settings_for(tmp_path, admission__promise_seconds=0.001)) as service,
        service.client() as client,
    ):
        responses = [client.post("/v1/videos", json={"prompt": f"ball {n}"}) for n in range(3)]
        assert [response.status_code for response in responses] == [200, 429, 429]


def test_an_exceeded_quota_is_a_429_that_an_sdk_does_not_retry(service):
    key = service.add_tenant("small", share=Share(max_queued=1))
    with service.client(key) as client:
        assert client.post("/v1/videos", json={"prompt": "x"}).status_code == 200
        rejected = client.post("/v1/videos", json={"prompt": "y"})
        assert (rejected.status_code, rejected.json()["error"]["code"]) == (429, "quota_exceeded")
        assert rejected.headers["x-should-retry"] == "false"
        assert int(rejected.headers["retry-after"]) >= 1


def test_a_full_store_rejects_new_requests(tmp_path):
    with (
        running(settings_for(tmp_path, store__min_free_bytes=1 << 60)) as service,
        service.client() as client,
    ):
        response = client.post("/v1/videos", json={"prompt": "x"})
        assert (response.status_code, response.json()["error"]["code"]) == (507, "storage_full")
        assert response.headers["x-should-retry"] == "false"


def test_a_flagged_prompt_is_recorded_with_its_rule_and_a_tenant_may_reject_it(service, caplog):
    strict = service.add_tenant("strict", screening={"contact_data": ScreeningAction.REJECT})
    prompt = "a poster that says jo@example.com"
    with caplog.at_level("INFO", "filmgate.admission"), service.client() as client:
        video = client.post("/v1/videos", json={"prompt": prompt}).json()
        assert video["screening"] == "flag"
        with service.client(strict) as other:
            error = other.post("/v1/videos", json={"prompt": prompt}).json()["error"]
    job = service.services.reader.find("local", video["id"])
    assert job.screening.rules == ("personal.email",)
    assert error["code"] == "content_policy_violation"
    written = "".join(str(record.__dict__) for record in caplog.records)
    assert "personal.email" in written
    assert "example.com" not in written + str(error)
    # Nobody without the tenant's key can confirm a guessed prompt, and no two tenants have the same digest.
    lines = [getattr(record, "fields", {}) for record in caplog.records]
    digests = {line["prompt_digest"] for line in lines if "prompt_digest" in line}
    assert len(digests) == 2
    assert hashlib.sha256(prompt.encode()).hexdigest() not in written


def test_the_estimate_follows_measured_jobs(tmp_path):
    with running(settings_for(tmp_path)) as service, service.client() as client:
        before = client.post("/v1/videos", json={"prompt": "x"}).json()["cost"]["gpu_seconds"]
        for _ in range(5):
            client.post("/v1/videos", json={"prompt": "x"})
            service.hand().make()
        service.services.admission._estimator._learned.clear()
        after = client.post("/v1/videos", json={"prompt": "x"}).json()["cost"]["gpu_seconds"]
        assert abs(after - 1.6) < abs(before - 1.6)


def test_the_slow_urls_of_one_tenant_do_not_block_the_uploads_of_another(service, client, monkeypatch):
    is_free, waiting = threading.Event(), threading.Semaphore(0)

    def slow_fetch(_url, _limits):
        waiting.release()
        is_free.wait(60)
        raise UrlNotAllowed("too slow", option="input_reference")

    monkeypatch.setattr("filmgate.admission.sources.fetch", slow_fetch)
    body = {"prompt": "x", "input_reference": {"image_url": "http://slow.example/a.png"}}
    fast = service.add_tenant("fast-uploads")
    most = service.settings.limits.max_uploads_per_tenant
    with ThreadPoolExecutor(most) as pool, service.client(fast) as other:
        slow = [pool.submit(client.post, "/v1/videos", json=body) for _ in range(most)]
        for _ in range(2):
            assert waiting.acquire(timeout=60)
        wait_until(lambda: service.edge.uploads.total == most)
        image = {"input_reference": ("a.png", png(), "image/png")}
        assert other.post("/v1/videos", data={"prompt": "x"}, files=image).status_code == 200
        refused = client.post("/v1/videos", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/v1/videos").status_code == 200
        assert not any(response.done() for response in slow)
        is_free.set()
        assert {response.result(60).status_code for response in slow} == {400}
    assert service.edge.uploads.total == 0


def test_a_rejection_names_the_category(client):
    error = client.post("/v1/videos", json={"prompt": "a p.o.r.n film"}).json()["error"]
    assert (error["code"], error["param"]) == ("content_policy_violation", "prompt")
    assert error["message"] == "the prompt was rejected for sexual (rule sexual.explicit); change the prompt"


def test_without_the_classifier_a_request_waits_or_is_flagged_by_category(tmp_path):
    with moderation_server() as site:
        given = {"kind": "http", "url": site.url, "fail_closed": "sexual", "timeout_seconds": 30}
        settings = settings_for(tmp_path, **{f"classifier__{name}": value for name, value in given.items()})
        with running(settings) as service, service.client() as client:
            body = {"prompt": f"a {FORBIDDEN} scene"}
            assert "for sexual (rule http.sexual)" in client.post("/v1/videos", json=body).text
            site.reply = (500, "")
            refused = client.post("/v1/videos", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "screening_unavailable")
            assert refused.headers["retry-after"] == "1"
            with service.client(
                service.add_tenant("adult", screening={"sexual": ScreeningAction.FLAG})
            ) as other:
                video = other.post("/v1/videos", json=body).json()
            job = service.services.reader.find("adult", video["id"])
            assert (job.screening.rules, job.screening.categories) == (("http.failed",), ("unscreened",))
