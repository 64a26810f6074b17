"""Quality levels and pixel formats in requests: listed, refused and inherited, and what levels cost."""

import pytest

from filmgate.jobs import JobId, TenantId
from filmgate.models.requests import VideoRequest, inherit

LOCAL = TenantId("local")


def test_a_model_lists_its_levels_with_their_difference(client):
    levels = client.get("/v1/models/flipbook").json()["quality_levels"]
    assert [level["name"] for level in levels] == ["full", "balanced", "draft"]
    assert all(level["description"] for level in levels)


def test_a_request_without_a_level_is_rendered_in_full(client):
    assert client.post("/v1/videos", json={"prompt": "a red ball"}).json()["quality"] == "full"


@pytest.mark.parametrize("encoding", ["json", "files"])
def test_a_request_names_its_level_and_the_video_says_what_it_got(client, service, encoding):
    fields = {"prompt": "a red ball", "quality": "draft", "steps": "30"}
    sent = {"json": fields} if encoding == "json" else {"files": {k: (None, v) for k, v in fields.items()}}
    made = client.post("/v1/videos", **sent).json()
    assert made["quality"] == "draft"
    assert service.services.reader.find(LOCAL, JobId(made["id"])).spec.quality == "draft"
    few = client.post("/v1/videos", json=fields | {"steps": 10}).json()
    assert few["quality"] == "full"  # so few steps are all computed


def test_a_level_that_the_model_does_not_have_is_refused_with_the_list(client):
    refused = client.post("/v1/videos", json={"prompt": "a red ball", "quality": "best"})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "quality")
    assert "full, balanced, draft" in error["message"]


def test_a_level_with_fewer_passes_costs_less(client):
    def estimate(quality):
        fields = {"prompt": "a red ball", "steps": 30, "quality": quality}
        answer = client.post("/v1/videos/estimate", json=fields).json()
        assert answer["quality"] == quality
        return answer["cost"]["gpu_seconds"]

    full, balanced, draft = map(estimate, ("full", "balanced", "draft"))
    assert full > balanced > draft


def test_the_same_key_with_another_level_is_another_request(client):
    headers = {"Idempotency-Key": "quality-1"}
    first = client.post("/v1/videos", json={"prompt": "a red ball", "quality": "draft"}, headers=headers)
    again = client.post("/v1/videos", json={"prompt": "a red ball", "quality": "draft"}, headers=headers)
    other = client.post("/v1/videos", json={"prompt": "a red ball", "quality": "full"}, headers=headers)
    assert first.json()["id"] == again.json()["id"]
    assert other.status_code in (400, 409, 422)


def test_the_audit_log_has_the_level(client):
    made = client.post("/v1/videos", json={"prompt": "a red ball", "quality": "draft", "steps": 30}).json()
    records = client.get(f"/v1/videos/{made['id']}/audit").json()["data"]
    assert records[0]["details"]["spec"]["quality"] == "draft"


def test_a_request_names_its_pixel_format_and_a_remix_inherits_it(client, service):
    fields = {"prompt": "a red ball", "pixel_format": "yuv422p10"}
    made = client.post("/v1/videos", json=fields).json()
    assert made["pixel_format"] == "yuv422p10"
    spec = service.services.reader.find(LOCAL, JobId(made["id"])).spec
    assert spec.pixel_format == "yuv422p10"
    inherited = inherit(VideoRequest("a blue ball"), spec, service.services.models.find("flipbook").limits)
    assert inherited.pixel_format == "yuv422p10"
    assert client.post("/v1/videos", json={"prompt": "a red ball"}).json()["pixel_format"] is None


def test_a_pixel_format_that_the_codec_cannot_write_is_refused_with_the_list(client):
    refused = client.post("/v1/videos", json={"prompt": "a red ball", "pixel_format": "rgb24"})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "pixel_format")
    assert "yuv420p, yuv420p10, yuv422p, yuv422p10" in error["message"]
