"""/v1/tenants: only for admins, and everything that `filmgate tenant` does."""

import pytest
from fastapi.routing import APIRoute

from filmgate.api import tenants
from filmgate.tenants.base import Scope, key_id_of

ROUTES = sorted(
    (method, route.path)
    for route in tenants.router.routes
    if isinstance(route, APIRoute)
    for method in route.methods
)


def test_a_tenant_is_added_changed_rotated_and_deleted(service, client):
    added = client.post("/v1/tenants", json={"id": "acme", "weight": 2, "max_queued": 5})
    assert (added.status_code, added.headers["cache-control"]) == (201, "no-store")
    first = added.json()["api_key"]
    shown = client.get("/v1/tenants/acme").json()
    assert shown == {name: value for name, value in added.json().items() if name != "api_key"}
    assert (shown["weight"], shown["max_queued"], shown["scopes"]) == (2, 5, ["generate", "read"])
    change = {
        "max_queued": None,
        "scopes": ["read"],
        "managed": {"is_allowed": True, "regions": ["eu-west-1"]},
        "objective": {"target": 0.99},
    }
    changed = client.patch("/v1/tenants/acme", json=change).json()
    assert (changed["weight"], changed["max_queued"], changed["scopes"]) == (2, None, ["read"])
    assert changed["managed"]["regions"] == ["eu-west-1"]
    assert changed["objective"] == {"seconds": None, "target": 0.99}
    second = client.post("/v1/tenants/acme/rotate", json={"overlap_seconds": 60})
    assert second.headers["cache-control"] == "no-store"
    for key in (first, second.json()["api_key"]):
        with service.client(key) as theirs:
            assert theirs.get("/v1/videos").status_code == 200
    assert client.delete("/v1/tenants/acme").json()["error"]["code"] == "tenant_in_use"
    assert client.patch("/v1/tenants/acme", json={"is_enabled": False}).json()["is_enabled"] is False
    with service.client(first) as theirs:
        assert theirs.get("/v1/videos").status_code == 401
    assert client.delete("/v1/tenants/acme").json() == {
        "id": "acme",
        "object": "tenant.deleted",
        "deleted": True,
    }
    assert "acme" not in [tenant["id"] for tenant in client.get("/v1/tenants").json()["data"]]
    records = client.get("/v1/audit", params={"tenant": "acme"}).json()["data"]
    assert [record["action"] for record in records] == [
        "tenant_created",
        "tenant_changed",
        "key_rotated",
        "tenant_changed",
        "forgotten",
        "tenant_deleted",
    ]
    assert {record["details"]["key"] for record in records} == {key_id_of(service.key)}


def test_a_change_keeps_the_fields_of_an_object_that_are_left_out(client):
    managed = {
        "is_allowed": True,
        "regions": ["eu-west-1"],
        "max_usd_per_clip": 2.5,
        "may_resize": True,
        "may_change_length": True,
    }
    objective = {"seconds": 60.0, "target": 0.99}
    client.post("/v1/tenants", json={"id": "merged", "managed": managed, "objective": objective})

    def change(name, value):
        return client.patch("/v1/tenants/merged", json={name: value}).json()[name]

    assert change("managed", {"is_allowed": False}) == managed | {"is_allowed": False}
    assert change("managed", {"max_usd_per_clip": None})["max_usd_per_clip"] is None
    assert change("managed", {"regions": []}) == {
        "is_allowed": False,
        "regions": [],
        "max_usd_per_clip": None,
        "may_resize": True,
        "may_change_length": True,
    }
    assert change("objective", {"seconds": 30}) == {"seconds": 30, "target": 0.99}
    assert change("objective", {"target": None}) == {"seconds": 30, "target": None}
    assert change("objective", {}) == {"seconds": 30, "target": None}


def test_half_of_a_surrogate_pair_is_refused_and_the_lists_still_work(client):
    refused = client.post("/v1/tenants", content=rb'{"id": "broken", "managed": {"regions": ["\ud800"]}}')
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "body")
    assert client.get("/v1/tenants/broken").status_code == 404
    assert client.get("/v1/tenants").status_code == client.get("/v1/audit").status_code == 200


def test_a_deleted_tenant_leaves_no_encryption_key(service, client):
    key = client.post("/v1/tenants", json={"id": "going"}).json()["api_key"]
    with service.client(key) as theirs:
        video = theirs.post("/v1/videos", json={"prompt": "a red ball"}).json()["id"]
        assert theirs.delete(f"/v1/videos/{video}").status_code == 200
    path = service.settings.data / "keys" / "going.key"
    assert path.exists()
    client.patch("/v1/tenants/going", json={"is_enabled": False})
    assert client.delete("/v1/tenants/going").status_code == 200
    assert not path.exists()


def test_a_tenant_with_videos_is_not_deleted(service, client):
    key = client.post("/v1/tenants", json={"id": "busy"}).json()["api_key"]
    with service.client(key) as theirs:
        theirs.post("/v1/videos", json={"prompt": "a red ball"})
    client.patch("/v1/tenants/busy", json={"is_enabled": False})
    error = client.delete("/v1/tenants/busy").json()["error"]
    assert error["message"] == "tenant busy still has 1 videos; delete them, or wait until retention does"


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_only_admins_use_it_and_others_learn_nothing(service, method, path):
    name = f"user-{method.lower()}-{len(path)}"
    key = service.add_tenant(name, scopes=frozenset({Scope.GENERATE, Scope.READ}))
    with service.client(key) as theirs:
        bodies = [
            theirs.request(method, path.replace("{tenant_id}", tenant), json={"id": "x"})
            for tenant in ("local", "nobody")
        ]
    assert {response.status_code for response in bodies} == {403}
    assert len({response.text for response in bodies}) == 1


def test_all_routes_are_found():
    assert len(ROUTES) == 8


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/tenants/nobody", None, 404, "tenant_not_found"),
        ("GET", "/v1/tenants/a%00", None, 400, "invalid_value"),
        ("POST", "/v1/workers/a%00/drain", None, 400, "invalid_value"),
        ("POST", "/v1/tenants", {"id": "local"}, 409, "tenant_exists"),
        ("POST", "/v1/tenants", {"id": "Not Good"}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"weight": 0}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"wait": 1}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"certificate": "CN=a\0"}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"managed": None}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"managed": {"max_usd_per_clip": -1}}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"objective": None}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"objective": {"target": 1}}, 400, "invalid_value"),
        ("PATCH", "/v1/tenants/local", {"is_enabled": False}, 409, "tenant_in_use"),
        ("PATCH", "/v1/tenants/local", {"scopes": ["read"]}, 409, "tenant_in_use"),
    ],
)
def test_an_invalid_change_is_refused(client, method, path, body, status, code):
    response = client.request(method, path, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_screening_is_changed_by_category_and_checked(client):
    client.post("/v1/tenants", json={"id": "press"})
    categories = client.get("/v1/tenants/screening-categories").json()["data"]
    assert {"name": "minors", "action": "reject", "is_fixed": True} in categories
    changed = client.patch("/v1/tenants/press", json={"screening": {"contact_data": "allow"}}).json()
    assert changed["screening"] == {"contact_data": "allow"}
    for name in ("minors", "gossip"):
        refused = client.patch("/v1/tenants/press", json={"screening": {name: "allow"}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "screening")
