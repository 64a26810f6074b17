"""What enters over HTTP: images made plain, promises kept, quotas held, prompts never written down."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from filmgate.admission.uploads.images import clean_image
from filmgate.api.services import SLOW_THREADS
from filmgate.errors import AddressRefused, ImageRefused, UploadTooLarge
from filmgate.jobs import ScreeningAction, Share
from filmgate.models.requests import Upload
from filmgate.settings import AdmissionSettings
from filmgate.store.base import UPLOAD_PART, ObjectName
from tests.images import bomb, png
from tests.service import running, settings_for

SETTINGS = AdmissionSettings(image_max_pixels=10_000)


def upload(data):
    return Upload("input_reference", data)


def test_an_image_comes_back_as_plain_pixels_without_metadata():
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    exif[0x0112] = 6  # rotated
    out = io.BytesIO()
    Image.new("RGBA", (20, 10), (1, 2, 3, 4)).convert("RGB").save(out, "JPEG", exif=exif)
    cleaned = clean_image(upload(out.getvalue()), SETTINGS)
    image = Image.open(io.BytesIO(cleaned.data))
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (10, 20))
    assert not image.getexif()
    assert b"secret place" not in cleaned.data


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_the_type_is_told_by_content(kind):
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, kind)
    assert clean_image(upload(out.getvalue()), SETTINGS).media_type == "image/png"


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
    ids=["empty", "gif", "svg", "cut", "half", "broken", "bomb"],
)
def test_what_is_no_sound_image_is_refused(data):
    with pytest.raises(ImageRefused):
        clean_image(upload(data), SETTINGS)


def test_pixels_and_bytes_are_bounded():
    with pytest.raises(ImageRefused, match="pixels"):
        clean_image(upload(png(200, 200)), SETTINGS)
    with pytest.raises(UploadTooLarge):
        clean_image(upload(b"x" * 2000), AdmissionSettings(image_max_bytes=1024))


def test_an_uploaded_image_is_in_the_store_before_the_job_is_accepted(service, client):
    files = {"input_reference": ("any-name.exe", png(), "application/x-msdownload")}
    video = client.post("/v1/videos", data={"prompt": "x"}, files=files).json()
    stored = b"".join(service.services.store.read(ObjectName("local", video["id"], UPLOAD_PART)))
    assert Image.open(io.BytesIO(stored)).size == (8, 8)
    bad = client.post("/v1/videos", data={"prompt": "x"}, files={"input_reference": ("a.png", b"no")})
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_image")


def test_a_second_upload_with_the_same_key_leaves_nothing_behind(service, client):
    files = {"input_reference": ("a.png", png(), "image/png")}
    send = {"data": {"prompt": "twin"}, "files": files, "headers": {"Idempotency-Key": "twin"}}
    ids = {client.post("/v1/videos", **send).json()["id"] for _ in range(3)}
    assert len(ids) == 1
    listed = {v["id"] for v in client.get("/v1/videos", params={"limit": 100}).json()["data"]}
    assert set(service.services.store.jobs("local")) <= listed


def test_a_private_address_as_input_is_refused(client):
    body = {"prompt": "x", "input_reference": {"image_url": "http://169.254.169.254/latest/meta-data"}}
    answers = [
        client.post("/v1/videos", json=body),
        client.post("/v1/videos", data={"prompt": "x", "input_reference[image_url]": "http://localhost/a"}),
    ]
    assert {(a.status_code, a.json()["error"]["code"]) for a in answers} == {(400, "url_refused")}


def test_a_backlog_over_the_promise_is_a_429_with_an_honest_wait(tmp_path):
    with (
        running(settings_for(tmp_path, admission__promise_seconds=20.0)) as service,
        service.client() as client,
    ):
        answers = []
        while not answers or answers[-1].status_code == 200:
            assert len(answers) < 50
            service.services.gate._backlog._seen = None
            key = {"Idempotency-Key": str(len(answers))}
            answers.append(client.post("/v1/videos", json={"prompt": "x"}, headers=key))
        refused = answers[-1]
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        # What was accepted before is answered again, backlog or not: its answer may have been lost.
        again = client.post("/v1/videos", json={"prompt": "x"}, headers={"Idempotency-Key": "0"})
        assert again.json()["id"] == answers[0].json()["id"]
        other = service.add_tenant("other")
        with service.client(other) as first_timer:
            assert first_timer.post("/v1/videos", json={"prompt": "x"}).status_code == 200


def test_a_quota_is_a_429_that_no_sdk_hammers(service):
    key = service.add_tenant("small", share=Share(max_queued=1))
    with service.client(key) as client:
        assert client.post("/v1/videos", json={"prompt": "x"}).status_code == 200
        refused = client.post("/v1/videos", json={"prompt": "y"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
        assert refused.headers["x-should-retry"] == "false"
        assert int(refused.headers["retry-after"]) >= 1


def test_a_full_store_refuses_new_work(tmp_path):
    with (
        running(settings_for(tmp_path, store__min_free_bytes=1 << 60)) as service,
        service.client() as client,
    ):
        answer = client.post("/v1/videos", json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
        assert answer.headers["x-should-retry"] == "false"


def test_a_flag_is_recorded_with_its_rule_and_a_tenant_may_choose_otherwise(service, caplog):
    strict = service.add_tenant("strict", screening={"contact_data": ScreeningAction.REJECT})
    prompt = "a poster that says jo@example.com"
    with caplog.at_level("INFO", "filmgate.admission"), service.client() as client:
        video = client.post("/v1/videos", json={"prompt": prompt}).json()
        assert video["screening"] == "flag"
        with service.client(strict) as refused:
            error = refused.post("/v1/videos", json={"prompt": prompt}).json()["error"]
    job = service.services.reader.find("local", video["id"])
    assert job.screening.rules == ("personal.email",)
    assert error["code"] == "content_policy_violation"
    written = "".join(str(record.__dict__) for record in caplog.records)
    assert "personal.email" in written
    assert "example.com" not in written + str(error)


def test_the_estimate_follows_what_jobs_took(tmp_path):
    with running(settings_for(tmp_path)) as service, service.client() as client:
        before = client.post("/v1/videos", json={"prompt": "x"}).json()["cost"]["gpu_seconds"]
        for _ in range(5):
            client.post("/v1/videos", json={"prompt": "x"})
            service.hand().make()
        service.services.gate._estimator._learned.clear()
        after = client.post("/v1/videos", json={"prompt": "x"}).json()["cost"]["gpu_seconds"]
        assert abs(after - 1.6) < abs(before - 1.6)


def test_slow_addresses_do_not_keep_other_callers_waiting(service, client, monkeypatch):
    is_free, waiting = threading.Event(), threading.Semaphore(0)

    def slow_fetch(_url, _limits):
        waiting.release()
        is_free.wait(60)
        raise AddressRefused("too slow", option="input_reference")

    monkeypatch.setattr("filmgate.admission.accept.fetch", slow_fetch)
    body = {"prompt": "x", "input_reference": {"image_url": "http://slow.example/a.png"}}
    with ThreadPoolExecutor(20) as pool:
        stuck = [pool.submit(client.post, "/v1/videos", json=body) for _ in range(20)]
        for _ in range(SLOW_THREADS):
            waiting.acquire(timeout=60)
        assert client.get("/v1/videos").status_code == 200
        assert not any(answer.done() for answer in stuck)
        is_free.set()
        assert {answer.result(60).status_code for answer in stuck} == {400}
