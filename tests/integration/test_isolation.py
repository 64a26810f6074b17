"""A tenant can neither read, list, infer nor decrypt another tenant's anything."""

import re
import secrets

import httpx
import pytest
from fastapi.routing import APIRoute

from filmgate.api import content, events, live, models, videos
from filmgate.store.base import ObjectName
from tests.images import png
from tests.service import running, settings_for

SECRET_PROMPT = "the heron nobody else may know about"
SECRET_MOVIE = b"frames that only their owner may see " * 500
UNKNOWN = "video_" + "f" * 32
MALFORMED = ["video_", "VIDEO_" + "f" * 32, "..%2f..", "%00", "video_" + "f" * 33, "0"]


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Two tenants; one has a finished clip, a queued job and a job from an image."""
    with running(settings_for(tmp_path_factory.mktemp("town"))) as service:
        owner, other = service.add_tenant("owner"), service.add_tenant("other")
        with service.client(owner) as mine, service.client(other) as theirs:
            done = mine.post("/v1/videos", json={"prompt": SECRET_PROMPT}).json()
            service.hand().make(SECRET_MOVIE)
            image = {"input_reference": ("a.png", png(), "image/png")}
            waiting = mine.post("/v1/videos", data={"prompt": SECRET_PROMPT}, files=image).json()
            yield service, mine, theirs, done["id"], waiting["id"]


def routes_with_an_id():
    """(method, path) of every route of the API that takes a video's id."""
    parts = (videos, content, live, events, models)
    routes = [route for part in parts for route in part.router.routes if isinstance(route, APIRoute)]
    return sorted((m, r.path) for r in routes for m in r.methods if "{video_id}" in r.path)


def test_no_route_with_an_id_is_forgotten():
    assert len(routes_with_an_id()) == 9


@pytest.mark.parametrize(("method", "path"), routes_with_an_id())
@pytest.mark.parametrize("which", ["done", "waiting"])
def test_a_foreign_id_answers_exactly_like_an_unknown_one(town, method, path, which):
    _, _, theirs, *ids = town
    foreign = _ask(theirs, method, path, ids[which == "waiting"])
    unknown = _ask(theirs, method, path, UNKNOWN)
    assert foreign == unknown
    assert foreign[0] == 404


@pytest.mark.parametrize(("method", "path"), routes_with_an_id())
def test_a_malformed_id_is_an_unknown_one(town, method, path):
    _, _, theirs, *_ = town
    answers = {_ask(theirs, method, path, text)[0] for text in MALFORMED}
    assert answers == {404}


def _ask(client, method, path, video_id):
    body = {"json": {"prompt": "x"}} if path.endswith("remix") else {}
    answer = client.request(method, path.replace("{video_id}", video_id), **body)
    headers = {k: v for k, v in answer.headers.items() if k not in ("x-request-id", "date")}
    return answer.status_code, answer.text, headers


@pytest.mark.parametrize("verb", ["edits", "extensions"])
def test_a_foreign_clip_cannot_be_a_source(town, verb):
    _, _, theirs, done, _ = town
    texts = {
        theirs.post(f"/v1/videos/{verb}", json={"prompt": "x", "video": {"id": video_id}}).text
        for video_id in (done, UNKNOWN)
    }
    assert len(texts) == 1
    assert "video_not_found" in texts.pop()


def test_a_foreign_cursor_is_an_unknown_one(town):
    _, _, theirs, done, _ = town
    answers = [theirs.get("/v1/videos", params={"after": cursor}) for cursor in (done, UNKNOWN)]
    assert {(a.status_code, a.text) for a in answers} == {(404, answers[0].text)}


def test_a_list_holds_only_the_callers_own(town):
    _, mine, theirs, done, waiting = town
    assert theirs.get("/v1/videos").json()["data"] == []
    assert {v["id"] for v in mine.get("/v1/videos").json()["data"]} == {done, waiting}


def test_a_foreign_idempotency_key_makes_a_job_of_ones_own(town):
    _, mine, theirs, *_ = town
    headers = {"Idempotency-Key": secrets.token_hex(8)}
    first = mine.post("/v1/videos", json={"prompt": "x"}, headers=headers).json()
    second = theirs.post("/v1/videos", json={"prompt": "other"}, headers=headers)
    assert second.status_code == 200
    assert second.json()["id"] != first["id"]
    for client, video in ((mine, first), (theirs, second.json())):
        client.delete(f"/v1/videos/{video['id']}")


def test_a_retry_of_a_foreign_body_makes_a_job_of_ones_own(town):
    _, mine, theirs, *_ = town
    body = {"json": {"prompt": "the same words"}}
    first = mine.post("/v1/videos", **body).json()
    second = theirs.post("/v1/videos", **body, headers={"x-stainless-retry-count": "1"}).json()
    assert first["id"] != second["id"]
    for client, video in ((mine, first), (theirs, second)):
        client.delete(f"/v1/videos/{video['id']}")


def test_metrics_which_name_tenants_are_closed_to_tenants(town):
    _, _, theirs, *_ = town
    assert theirs.get("/metrics").status_code == 403


def test_a_link_for_one_object_opens_no_other(town):
    service, _, theirs, done, waiting = town
    link = service.services.store.link(ObjectName("other", done, "clip-1.mp4"), 60)
    assert theirs.get(link).status_code == 404
    own = service.services.store.link(ObjectName("owner", waiting, "source"), 60)
    assert theirs.get(own.replace(waiting, done)).content.startswith(b"\x89PNG")


def test_a_stream_link_opens_one_video_of_its_tenant_and_no_other(town):
    service, mine, theirs, done, waiting = town
    own = theirs.post("/v1/videos", json={"prompt": "mine"}).json()["id"]
    link = mine.post(f"/v1/videos/{done}/stream-link").json()["url"]
    foreign = theirs.post(f"/v1/videos/{own}/stream-link").json()["url"].partition("=")[2]
    assert httpx.get(service.url + link).content == SECRET_MOVIE
    tries = [link.replace(done, waiting), link.replace(done, own), link.replace(done, UNKNOWN)]
    tries += [f"/v1/videos/{done}/stream?link={foreign}", link[:-2], f"{link}A"]
    answers = [httpx.get(service.url + path) for path in tries]
    assert {(a.status_code, a.text) for a in answers} == {(403, answers[0].text)}
    # A key does not help a link that is not valid, nor another's link a key.
    assert theirs.get(tries[1]).status_code == 403
    theirs.delete(f"/v1/videos/{own}")


def test_a_disabled_tenants_stream_links_stop_at_once(town):
    service, *_ = town
    with service.client(service.add_tenant("leaving")) as leaving:
        video = leaving.post("/v1/videos", json={"prompt": "x"}).json()["id"]
        link = service.url + leaving.post(f"/v1/videos/{video}/stream-link").json()["url"]
        leaving.post(f"/v1/videos/{video}/cancel")
        assert httpx.get(link).status_code == 404
        service.services.tenants.disable("leaving")
        assert httpx.get(link).status_code == 403


def test_neither_prompt_nor_clip_nor_upload_nor_key_lies_on_disk_in_the_clear(town):
    service, *_ = town
    files = [path for path in service.settings.data.rglob("*") if path.is_file()]
    kept = {path.name for path in files}
    assert {"filmgate.db", "clip-1.mp4", "source"} <= kept
    secret_key = re.search(r"fg_[0-9a-f]+_([0-9a-f]+)", service.add_tenant("third"))[1]
    needles = [b"heron nobody", b"only their owner", b"IHDR", secret_key.encode()]
    leaks = [(p.name, n) for p in files for n in needles if n in p.read_bytes()]
    assert leaks == []
