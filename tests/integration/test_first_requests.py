"""The first requests of a new user: models that nobody serves, and requests written for Sora."""

from dataclasses import replace

import pytest

from filmgate.jobs import Route
from filmgate.models.cards import open_registry
from filmgate.scheduling.workers import WorkerRegistry, WorkerStatus
from tests.service import HAND, running, settings_for


@pytest.fixture(scope="module")
def unserved(tmp_path_factory):
    """A server whose models may not scale from zero."""
    given = {"admission__scale_from_zero": "", "admission__default_model": "miniature"}
    with running(settings_for(tmp_path_factory.mktemp("unserved"), **given)) as service:
        yield service


def test_only_a_served_model_is_promised(unserved):
    request = {"prompt": "a red ball", "model": "flipbook"}
    with unserved.client() as client:
        response = client.post("/v1/videos", json=request)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "model_not_served")
        assert "filmgate worker --model flipbook" in error["message"]
        assert response.headers["x-should-retry"] == "false"
        unserved.hand().announce()
        assert client.post("/v1/videos", json=request).status_code == 200
        WorkerRegistry(unserved.services.queue._database).leave(HAND)
        assert len(client.get("/v1/videos").json()["data"]) == 1


def test_a_request_for_a_model_that_nobody_serves_makes_no_forecast(unserved, monkeypatch):
    made = []
    monkeypatch.setattr(unserved.services.forecast, "refresh", lambda: made.append("a forecast"))
    with unserved.client() as client:
        response = client.post("/v1/videos", json={"prompt": "a red ball", "model": "miniature"})
    assert (response.status_code, made) == (503, [])


def test_a_worker_is_used_from_its_first_heartbeat(unserved):
    registry = WorkerRegistry(unserved.services.queue._database)
    unserved.services.forecast.refresh()
    registry.heartbeat(WorkerStatus(HAND, Route.GPU, ("flipbook",), "cpu"))
    with unserved.client() as client:
        request = {"prompt": "a red ball", "model": "flipbook"}
        assert client.post("/v1/videos", json=request).status_code == 200
    registry.leave(HAND)


def test_a_model_without_a_card_waits_for_an_autoscaler_once_a_worker_has_served_it(tmp_path):
    """Its limits are those of the loaded pipeline: the last worker leaves them behind."""
    settings = settings_for(tmp_path, admission__scale_from_zero="film,ltx", admission__default_model="film")
    with running(settings) as service, service.client() as client:
        registry = WorkerRegistry(service.services.queue._database)
        cards = [replace(open_registry("flipbook").default, name=name) for name in ("film", "gone")]
        registry.heartbeat(WorkerStatus(HAND, Route.GPU, ("film", "gone"), "cpu"), cards)
        registry.leave(HAND)
        video = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
        assert (video["model"], video["status"], video["eta_seconds"]) == ("film", "queued", None)
        for name in ("ltx", "gone"):  # not a 404, after which a client would not try again
            response = client.post("/v1/videos", json={"prompt": "a red ball", "model": name})
            assert (response.status_code, response.json()["error"]["code"]) == (503, "model_not_served")
            assert f"no worker serves {name}, so its limits" in response.json()["error"]["message"]
        models = {model["id"]: model["is_served"] for model in client.get("/v1/models").json()["data"]}
    assert models == {"flipbook": False, "miniature": False, "film": False}


def test_a_served_model_replaces_a_default_that_nobody_serves(tmp_path):
    with running(settings_for(tmp_path, admission__default_model="miniature")) as service:
        service.hand().announce()
        with service.client() as client:
            assert client.post("/v1/videos", json={"prompt": "a red ball"}).json()["model"] == "flipbook"
            models = client.get("/v1/models").json()["data"]
    shown = {model["id"]: (model["is_default"], model["is_served"], model["aliases"]) for model in models}
    assert shown == {"flipbook": (True, True, ["sora-2", "sora-2-pro"]), "miniature": (False, False, [])}


@pytest.mark.parametrize(
    ("model", "size", "rendered", "seconds"),
    [
        ("sora-2", "720x1280", "288x512", "4"),
        ("sora-2", "1280x720", "512x288", "8"),
        ("sora-2-pro", "1024x1792", "288x512", "12"),
        ("sora-2-pro", "256x256", "256x256", "4"),
    ],
)
def test_requests_for_sora_are_accepted(client, model, size, rendered, seconds):
    form = {"model": model, "prompt": "a red ball", "size": size, "seconds": seconds}
    video = client.post("/v1/videos", data=form).json()
    assert (video["size"], video["rendered_size"], video["seconds"]) == (size, rendered, seconds)
    assert video["model"] == "flipbook"


def test_more_seconds_than_the_model_renders_are_refused_with_the_maximum(client):
    error = client.post("/v1/videos", data={"prompt": "a red ball", "seconds": "20"}).json()["error"]
    assert error["param"] == "seconds"
    assert "12 seconds" in error["message"]


def test_pages_of_listed_origins_may_call_the_api(tmp_path):
    asked = {"Origin": "https://films.example", "Access-Control-Request-Method": "POST"}
    settings = settings_for(tmp_path, api__cors_origins="https://films.example")
    with running(settings) as service, service.client() as client:
        allowed = client.options("/v1/videos", headers=asked)
        other = client.options("/v1/videos", headers=asked | {"Origin": "https://other.example"})
        read = client.get("/v1/videos/video_x/content", headers={"Origin": "https://films.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://films.example"
    assert "access-control-allow-origin" not in other.headers
    # What an SDK in a page decides by.
    exposed = read.headers["access-control-expose-headers"].split(", ")
    assert {"x-should-retry", "retry-after", "openai-poll-after-ms", "x-request-id"} <= set(exposed)


def test_a_prompt_that_the_model_cannot_show_has_a_warning(client):
    video = client.post("/v1/videos", json={"prompt": "a cat on a skateboard"}).json()
    assert len(video["warnings"]) == 1
    assert "can show only 18 objects" in video["warnings"][0]
