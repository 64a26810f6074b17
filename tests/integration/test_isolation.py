"""A tenant cannot read, list, infer or decrypt anything of another tenant."""

import re
import secrets

import httpx
import pytest
from fastapi.routing import APIRoute

from filmgate.api import content, events, live, models, operators, plan, videos
from filmgate.store.base import ObjectName
from tests.images import png
from tests.service import running, settings_for

SECRET_PROMPT = "the heron of one tenant only"
SECRET_CLIP = b"frames that only their owner may see " * 500
UNKNOWN = "video_" + "f" * 32
MALFORMED = ["video_", "VIDEO_" + "f" * 32, "..%2f..", "%00", "video_" + "f" * 33, "0"]

RANDOM_HEADERS = ("x-request-id", "date", "traceparent", "x-amzn-trace-id")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two tenants; one has a finished clip, a queued job and a job from an image."""
    with running(settings_for(tmp_path_factory.mktemp("site"))) as service:
        owner, other = service.add_tenant("owner"), service.add_tenant("other")
        with service.client(owner) as mine, service.client(other) as theirs:
            done = mine.post("/v1/videos", json={"prompt": SECRET_PROMPT}).json()
            service.hand().make(SECRET_CLIP)
            image = {"input_reference": ("a.png", png(), "image/png")}
            waiting = mine.post("/v1/videos", data={"prompt": SECRET_PROMPT}, files=image).json()
            yield service, mine, theirs, done["id"], waiting["id"]


def routes_with_an_id():
    """(method, path) of every route of the API that takes a video's id."""
    parts = (videos, content, live, events, models, operators, plan)
    routes = [route for part in parts for route in part.router.routes if isinstance(route, APIRoute)]
    return sorted((m, r.path) for r in routes for m in r.methods if "{video_id}" in r.path)


def test_all_routes_with_an_id_are_found():
    assert len(routes_with_an_id()) == 9


@pytest.mark.parametrize(("method", "path"), routes_with_an_id())
@pytest.mark.parametrize("which", ["done", "waiting"])
def test_a_foreign_id_gets_the_same_response_as_an_unknown_one(site, method, path, which):
    _, _, theirs, *ids = site
    foreign = _request(theirs, method, path, ids[which == "waiting"])
    unknown = _request(theirs, method, path, UNKNOWN)
    assert foreign == unknown
    assert foreign[0] == 404


@pytest.mark.parametrize(("method", "path"), routes_with_an_id())
def test_a_malformed_id_is_a_404(site, method, path):
    _, _, theirs, *_ = site
    responses = {_request(theirs, method, path, text)[0] for text in MALFORMED}
    assert responses == {404}


def _request(client, method, path, video_id):
    body = {"json": {"prompt": "x"}} if path.endswith("remix") else {}
    response = client.request(method, path.replace("{video_id}", video_id), **body)
    headers = {k: v for k, v in response.headers.items() if k not in RANDOM_HEADERS}
    return response.status_code, response.text, headers


@pytest.mark.parametrize("verb", ["edits", "extensions"])
def test_a_foreign_clip_cannot_be_a_source(site, verb):
    _, _, theirs, done, _ = site
    texts = {
        theirs.post(f"/v1/videos/{verb}", json={"prompt": "x", "video": {"id": video_id}}).text
        for video_id in (done, UNKNOWN)
    }
    assert len(texts) == 1
    assert "video_not_found" in texts.pop()


@pytest.mark.parametrize("path", ["/v1/videos", "/v1/videos/estimate"])
def test_the_image_of_a_foreign_video_cannot_be_used(site, path):
    _, _, theirs, _, waiting = site
    texts = {
        theirs.post(path, json={"prompt": "x", "input_reference": {"video_id": video_id}}).text
        for video_id in (waiting, UNKNOWN, *MALFORMED)
    }
    assert len(texts) == 1
    assert "video_not_found" in texts.pop()


def test_a_foreign_cursor_gets_the_same_response_as_an_unknown_one(site):
    _, _, theirs, done, _ = site
    responses = [theirs.get("/v1/videos", params={"after": cursor}) for cursor in (done, UNKNOWN)]
    assert {(a.status_code, a.text) for a in responses} == {(404, responses[0].text)}


def test_a_list_contains_only_the_videos_of_the_caller(site):
    _, mine, theirs, done, waiting = site
    assert theirs.get("/v1/videos").json()["data"] == []
    assert {v["id"] for v in mine.get("/v1/videos").json()["data"]} == {done, waiting}


def test_the_same_idempotency_key_of_two_tenants_creates_two_jobs(site):
    _, mine, theirs, *_ = site
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    first = mine.post("/v1/videos", json={"prompt": "x"}, headers=headers).json()
    second = theirs.post("/v1/videos", json={"prompt": "other"}, headers=headers)
    assert second.status_code == 200
    assert second.json()["id"] != first["id"]
    for client, video in ((mine, first), (theirs, second.json())):
        client.delete(f"/v1/videos/{video['id']}")


def test_a_retry_of_another_tenants_body_creates_a_new_job(site):
    _, mine, theirs, *_ = site
    body = {"json": {"prompt": "the same prompt"}}
    first = mine.post("/v1/videos", **body).json()
    second = theirs.post("/v1/videos", **body, headers={"x-stainless-retry-count": "1"}).json()
    assert first["id"] != second["id"]
    for client, video in ((mine, first), (theirs, second)):
        client.delete(f"/v1/videos/{video['id']}")


@pytest.mark.parametrize(
    "path", ["/v1/workers/hand/drain", "/v1/tenants/owner/videos/{waiting}/cancel"], ids=["drain", "cancel"]
)
def test_tenants_cannot_do_what_operators_do(site, path):
    _, mine, theirs, _, waiting = site
    refused = theirs.post(path.replace("{waiting}", waiting))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    assert mine.get(f"/v1/videos/{waiting}").json()["status"] == "queued"


@pytest.mark.parametrize("filter_", [{"model": "flipbook"}, {"status": "completed"}, {"created_from": 0}])
def test_a_filtered_list_contains_only_the_videos_of_the_caller(site, filter_):
    _, mine, theirs, done, _ = site
    assert theirs.get("/v1/videos", params=filter_).json()["data"] == []
    assert done in [video["id"] for video in mine.get("/v1/videos", params=filter_).json()["data"]]


@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/queue", "/v1/workers", "/v1/statistics", "/v1/usage/workers?start_time=1.7e9"]
)
def test_tenants_cannot_read_what_operators_see(site, path):
    service, _, theirs, *_ = site
    refused = theirs.get(path)
    assert refused.status_code == 403
    assert "owner" not in refused.text
    with service.client() as operator:
        assert "owner" in operator.get(path).text or "/workers" in path


def test_usage_shows_only_the_caller(site):
    _, mine, theirs, *_ = site
    assert mine.get("/v1/usage").json()["gpu_seconds_today"] > 0
    used = theirs.get("/v1/usage").json()
    assert (used["tenant"], used["gpu_seconds_today"]) == ("other", 0.0)


def test_usage_by_time_shows_only_the_caller_unless_it_is_an_operator(site):
    service, mine, theirs, *_ = site
    path = "/v1/usage/videos?start_time=1700000000&bucket_width=all&group_by=tenant"

    def tenants(client):
        return {each["tenant"] for each in client.get(path).json()["data"][0]["results"]}

    assert tenants(mine) == {"owner"}
    assert tenants(theirs) <= {"other"}
    refused = [theirs.get(f"{path}&tenant={name}") for name in ("owner", "unknown")]
    assert {(a.status_code, a.text) for a in refused} == {(403, refused[0].text)}
    with service.client() as operator:
        assert "owner" in tenants(operator)


def test_a_digest_of_a_prompt_finds_nothing_of_another_tenant(site):
    _, mine, theirs, done, _ = site
    digests = [
        client.post("/v1/videos/prompt-digest", json={"prompt": SECRET_PROMPT}).json()["prompt_hmac"]
        for client in (mine, theirs)
    ]
    assert len(set(digests)) == 2
    for digest in digests:
        assert theirs.get("/v1/videos", params={"prompt_hmac": digest}).json()["data"] == []
    found = mine.get("/v1/videos", params={"prompt_hmac": digests[0]}).json()["data"]
    assert done in [video["id"] for video in found]


def test_a_list_of_operators_contains_no_prompt(site):
    service, *_ = site
    usage = "/v1/usage/videos?start_time=1700000000&bucket_width=all&group_by=tenant,model,route,reason"
    with service.client() as operator:
        texts = [operator.get(path).text for path in ("/v1/queue", "/v1/statistics", "/v1/workers", usage)]
    assert not any(SECRET_PROMPT in text for text in texts)


def test_a_link_to_one_object_gives_access_to_no_other(site):
    service, _, theirs, done, waiting = site
    link = service.services.store.link(ObjectName("other", done, "clip-1.mp4"), 60)
    assert theirs.get(link).status_code == 404
    own = service.services.store.link(ObjectName("owner", waiting, "source"), 60)
    assert theirs.get(own.replace(waiting, done)).content.startswith(b"\x89PNG")


def test_a_stream_link_gives_access_to_one_video(site):
    service, mine, theirs, done, waiting = site
    own = theirs.post("/v1/videos", json={"prompt": "mine"}).json()["id"]
    link = mine.post(f"/v1/videos/{done}/stream-link").json()["url"]
    foreign = theirs.post(f"/v1/videos/{own}/stream-link").json()["url"].partition("=")[2]
    assert httpx.get(service.url + link).content == SECRET_CLIP
    invalid = [link.replace(done, waiting), link.replace(done, own), link.replace(done, UNKNOWN)]
    invalid += [f"/v1/videos/{done}/stream?link={foreign}", link[:-2], f"{link}A"]
    responses = [httpx.get(service.url + path) for path in invalid]
    assert {(a.status_code, a.text) for a in responses} == {(403, responses[0].text)}
    # An API key does not make an invalid link valid.
    assert theirs.get(invalid[1]).status_code == 403
    theirs.delete(f"/v1/videos/{own}")


def test_the_stream_links_of_a_disabled_tenant_are_invalid_at_once(site):
    service, *_ = site
    with service.client(service.add_tenant("leaving")) as leaving:
        video = leaving.post("/v1/videos", json={"prompt": "x"}).json()["id"]
        link = service.url + leaving.post(f"/v1/videos/{video}/stream-link").json()["url"]
        leaving.post(f"/v1/videos/{video}/cancel")
        assert httpx.get(link).status_code == 404
        service.services.tenants.disable("leaving")
        assert httpx.get(link).status_code == 403


def test_no_file_contains_a_prompt_clip_upload_or_key_in_plain_text(site):
    service, *_ = site
    files = [path for path in service.settings.data.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"filmgate.db", "clip-1.mp4", "source"} <= names
    secret_key = re.search(r"fg_[0-9a-f]+_([0-9a-f]+)", service.add_tenant("third"))[1]
    needles = [b"heron of one", b"only their owner", png()[12:24], secret_key.encode()]
    leaks = [(p.name, n) for p in files for n in needles if n in p.read_bytes()]
    assert leaks == []
