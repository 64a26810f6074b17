"""The routes that the console needs: estimates, usage, the queue, workers, statistics and plans."""

import time

import pytest

from filmgate.api import plan
from filmgate.jobs import Route, WorkerId
from filmgate.scheduling.history import DeviceSeconds
from filmgate.scheduling.workers import GpuStatus, WorkerRegistry, WorkerStatus
from filmgate.tenants.base import Scope, key_id_of


@pytest.fixture(autouse=True)
def worker(service):
    """A worker that is alive, however long the tests before took, and not draining."""
    hand = service.hand()
    hand.announce()
    yield hand
    WorkerRegistry(service.services.queue._database).leave(WorkerId("hand"))


def count_jobs(client):
    """Jobs per bucket of their duration from request to end."""
    statistics = client.get("/v1/statistics").json()
    total = next((each for each in statistics["durations"] if each["kind"] == "total"), None)
    assert total is None or len(total["counts"]) == len(statistics["bounds"]) + 1
    assert total is None or (total["model"], total["route"]) == ("flipbook", "gpu")
    return sum(total["counts"]) if total else 0


def test_an_estimate_predicts_the_job_and_creates_none(client):
    body = {"prompt": "a red ball", "seconds": "2", "size": "1280x720"}
    before = client.get("/v1/videos").json()
    estimate = client.post("/v1/videos/estimate", json=body).json()
    assert client.get("/v1/videos").json() == before
    video = client.post("/v1/videos", json=body).json()
    shared = estimate.keys() & video.keys() - {"object"}
    assert {name: estimate[name] for name in shared} == {name: video[name] for name in shared}
    assert (estimate["size"], estimate["seconds"]) == ("1280x720", "2"), "the clip is scaled to this size"
    assert estimate["ready_in_seconds"] == pytest.approx(video["eta_seconds"], rel=0.5)
    assert estimate["queue_position"] == 1
    client.delete(f"/v1/videos/{video['id']}")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": "a red ball", "size": "100x100"}, "unsupported_value"),
        ({"prompt": "a red ball", "seconds": "900"}, "unsupported_value"),
        ({"prompt": "a red ball", "model": "unknown"}, "model_not_found"),
        ({"seconds": "2"}, "invalid_value"),
    ],
)
def test_an_estimate_rejects_what_create_rejects(client, body, code):
    responses = [client.post(path, json=body) for path in ("/v1/videos/estimate", "/v1/videos")]
    assert [r.json()["error"]["code"] for r in responses] == [code, code]
    assert responses[0].json() == responses[1].json()


def test_a_key_that_may_only_read_gets_no_estimate(service):
    with service.client(service.add_tenant("reader", scopes=frozenset({Scope.READ}))) as reader:
        assert reader.post("/v1/videos/estimate", json={"prompt": "x"}).status_code == 403
        assert reader.get("/v1/usage").json()["scopes"] == ["read"]


def test_operators_see_the_queue_the_workers_and_the_history(service, client, worker):
    before = count_jobs(client)
    first, second = (client.post("/v1/videos", json={"prompt": "a red ball"}).json() for _ in range(2))
    worker.take()
    worker.report()
    service.services.forecast.refresh()
    queue = client.get("/v1/queue").json()
    assert (queue["queued"], queue["running"]) == (1, 1)
    assert [job["id"] for job in queue["data"]] == [second["id"]]
    assert queue["data"][0]["position"] == 1
    assert queue["data"][0]["starts_in_seconds"] > 0
    workers = client.get("/v1/workers").json()["data"]
    assert [(w["id"], w["device"], w["running"], w["gpu"]) for w in workers] == [("hand", "cpu", 1, None)]
    worker.finish()
    client.delete(f"/v1/videos/{second['id']}")
    statistics = client.get("/v1/statistics").json()
    done = next(end for end in statistics["ended"] if end["state"] == "completed")
    assert (done["tenant"], done["model"]) == ("local", "flipbook")
    assert done["jobs"] == count_jobs(client) == before + 1
    client.delete(f"/v1/videos/{first['id']}")


def test_operators_see_the_gpu_of_a_worker(service, client):
    """Heat, memory and health, as the worker announces them."""
    registry = WorkerRegistry(service.services.queue._database)
    gpu = GpuStatus(is_healthy=True, temperature_celsius=88.0, memory_used_bytes=2**30)
    registry.heartbeat(
        WorkerStatus(WorkerId("gpu-1"), Route.GPU, ("flipbook",), "NVIDIA H200", speed=0.5, gpu=gpu)
    )
    found = next(each for each in client.get("/v1/workers").json()["data"] if each["id"] == "gpu-1")
    registry.leave(WorkerId("gpu-1"))
    assert (found["device"], found["speed"]) == ("NVIDIA H200", 0.5)
    assert found["gpu"] == {
        "is_healthy": True,
        "temperature_celsius": 88.0,
        "memory_used_bytes": 2**30,
        "memory_total_bytes": None,
    }


def test_a_plan_is_the_answer_of_the_planner(client):
    choices = client.get("/v1/plan").json()
    assert "wan2.1-t2v-14b" in choices["models"]
    body = {"model": "wan2.1-t2v-14b", "clips_per_day": 500, "slo_seconds": 3600, "region": "us-east-1"}
    answer = client.post("/v1/plan", json=body).json()
    assert answer["verdict"].startswith("Run ")
    assert answer["options"][0]["rank"] == 1
    assert answer["cost"]["usd_per_clip"] > 0
    impossible = client.post("/v1/plan", json=body | {"slo_seconds": 60}).json()
    assert (impossible["is_possible"], impossible["options"]) == (False, [])
    fixed = client.post("/v1/plan", json={"model": "THUDM/CogVideoX-2b"}).json()
    assert "720x480" in fixed["question"], "the only size that the model renders"


@pytest.mark.parametrize(
    ("body", "option"),
    [
        ({"model": "/etc"}, "model"),
        ({"model": "wan2.1-t2v-14b", "region": "--json"}, "region"),
        ({"model": "wan2.1-t2v-14b", "size": "10x10"}, "size"),
        ({"model": "wan2.1-t2v-14b", "seconds": -1}, "seconds"),
    ],
)
def test_a_plan_names_the_invalid_field(client, body, option):
    refused = client.post("/v1/plan", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, option)


def test_a_plan_that_takes_too_long_is_stopped(client, monkeypatch):
    monkeypatch.setattr(plan, "PLAN_SECONDS", 0.01)
    refused = client.post("/v1/plan", json={"model": "wan2.1-t2v-14b"})
    assert refused.status_code == 400
    assert "took longer" in refused.json()["error"]["message"]


def test_operators_drain_a_worker_and_cancel_a_video_of_any_tenant(service, client):
    """Both are done from the page Queue."""
    with service.client(service.add_tenant("films")) as films:
        video = films.post("/v1/videos", json={"prompt": "a red ball"}).json()["id"]
        cancelled = client.post(f"/v1/tenants/films/videos/{video}/cancel")
        assert cancelled.json() == {
            "id": video,
            "object": "video.cancelled",
            "tenant": "films",
            "status": "failed",
        }
        assert films.get(f"/v1/videos/{video}").json()["error"]["code"] == "cancelled"
        [record] = [
            each
            for each in films.get(f"/v1/videos/{video}/audit").json()["data"]
            if each["action"] == "cancelled"
        ]
        assert (record["details"]["by"], record["details"]["key"]) == ("key", key_id_of(service.key))
    assert client.post(f"/v1/tenants/other/videos/{video}/cancel").status_code == 404
    drained = client.post("/v1/workers/hand/drain").json()["data"]
    assert [(worker["id"], worker["is_draining"]) for worker in drained] == [("hand", True)]
    assert client.post("/v1/workers/nobody/drain").json()["error"]["code"] == "worker_not_found"


def test_videos_are_listed_by_model_state_and_date(service, client):
    first = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
    client.post(f"/v1/videos/{first['id']}/cancel")
    second = client.post("/v1/videos", json={"prompt": "a blue ball"}).json()

    def listed(**params):
        return [video["id"] for video in client.get("/v1/videos", params=params).json()["data"]]

    assert listed(status="open") == [second["id"]]
    assert first["id"] in listed(status="failed", model="Flip-Book")
    assert listed(model="another") == listed(created_before=1) == []
    assert set(listed(created_from=first["created_at"])) >= {first["id"], second["id"]}
    assert client.get("/v1/videos?status=unknown").status_code == 400
    client.delete(f"/v1/videos/{second['id']}")


def test_usage_by_time_model_and_reason(service, client, worker):
    """What the page Service shows for a range."""
    start = time.time() - 3600
    video = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
    worker.make()
    client.delete(f"/v1/videos/{video['id']}")
    other = client.post("/v1/videos", json={"prompt": "a red ball"}).json()
    client.delete(f"/v1/videos/{other['id']}")

    def read(**params):
        found = client.get("/v1/usage/videos", params={"start_time": start, **params})
        assert found.status_code == 200, found.text
        return found.json()["data"]

    (whole,) = read(bucket_width="all", group_by="model,route")
    row = next(each for each in whole["results"] if each["model"] == "flipbook")
    assert (row["route"], row["tenant"], row["reason"]) == ("gpu", None, None)
    assert row["completed"] >= 1
    assert row["cancelled"] >= 1
    assert 0 < row["p50_seconds"] <= row["p95_seconds"] <= row["p99_seconds"]
    assert row["gpu_seconds"] >= 1.6
    assert (row["usd"], row["late"]) == (None, 0)
    fine = read(bucket_width="5m")
    assert 12 <= len(fine) <= 14
    for name in ("completed", "cancelled", "judged"):
        assert sum(each[name] for bucket in fine for each in bucket["results"]) == row[name]
    reasons = {each["reason"] for each in read(bucket_width="all", group_by="reason")[0]["results"]}
    assert {"completed", "cancelled"} <= reasons
    days = read(group_by="tenant,model")
    assert days[-1]["start_time"] % 86400 == 0
    assert [each["tenant"] for each in days[-1]["results"] if each["tenant"] == "local"] == ["local"]


def test_busy_and_idle_devices_are_read_by_time(client, service):
    """GPU busy and idle between clips, for a range."""
    registry, start = WorkerRegistry(service.services.queue._database), time.time() - 3600
    for busy, gaps in ((0.0, 0), (30.0, 2)):
        seconds = DeviceSeconds(busy, busy / 3, 0.25 * gaps, gaps)
        registry.heartbeat(
            WorkerStatus(WorkerId("gpu-1"), Route.GPU, ("wan",), "gpu", device_seconds=seconds)
        )
    registry.leave(WorkerId("gpu-1"))

    def read(width):
        found = client.get("/v1/usage/workers", params={"start_time": start, "bucket_width": width})
        assert found.status_code == 200, found.text
        return found.json()["data"]

    (whole,) = read("all")
    (row,) = whole["results"]
    assert row == {
        "object": "usage.workers.result",
        "busy_seconds": 30.0,
        "idle_seconds": 10.0,
        "gap_seconds": 0.5,
        "gaps": 2,
    }
    fine = read("5m")
    assert 12 <= len(fine) <= 14
    assert sum(each["busy_seconds"] for bucket in fine for each in bucket["results"]) == pytest.approx(30.0)
    refused = client.get("/v1/usage/workers", params={"start_time": 2e9, "end_time": 1e9})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "end_time")


@pytest.mark.parametrize(
    ("params", "option"),
    [
        ({"start_time": 2e9, "end_time": 1e9}, "end_time"),
        ({"start_time": 1e9, "bucket_width": "1h"}, "bucket_width"),
        ({"start_time": time.time() - 200_000, "bucket_width": "5m"}, "bucket_width"),
        ({"start_time": 1e9, "bucket_width": "all", "group_by": "prompt"}, "group_by"),
        ({}, "start_time"),
    ],
)
def test_a_window_of_usage_that_cannot_be_read_names_the_field(client, params, option):
    refused = client.get("/v1/usage/videos", params=params)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, option)


def test_videos_are_found_by_the_digest_of_their_prompt(client):
    first = client.post("/v1/videos", json={"prompt": "a purple heron"}).json()["id"]
    second = client.post("/v1/videos", json={"prompt": "a blue ball"}).json()["id"]
    digest = client.post("/v1/videos/prompt-digest", json={"prompt": "a purple heron"}).json()["prompt_hmac"]
    found = client.get("/v1/videos", params={"prompt_hmac": digest}).json()["data"]
    assert [video["id"] for video in found] == [first]
    created = client.get(f"/v1/videos/{first}/audit").json()["data"][0]
    assert created["details"]["prompt_hmac"] == digest
    assert client.get("/v1/videos?prompt_hmac=a+purple+heron").status_code == 400
    for video in (first, second):
        client.delete(f"/v1/videos/{video}")


def test_a_video_shows_its_settings(client):
    body = {"prompt": "a red ball", "seed": 7, "steps": 3, "guidance": 2.0, "negative_prompt": "rain"}
    video = client.post("/v1/videos", json=body).json()
    assert {name: video[name] for name in body} == body
    assert (video["fps"], video["lora"]) == (16, None)
    client.delete(f"/v1/videos/{video['id']}")
