"""The routes and the OpenAPI document, which is built once, and not on the event loop."""

import asyncio
import threading

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute

from filmgate.api.app import PARTS
from filmgate.api.openapi import OPENAPI_PATH, install_document


class Threads:
    async def call(self, work):
        return await asyncio.to_thread(work)


async def read_document(app, times):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await asyncio.gather(*(client.get(OPENAPI_PATH) for _ in range(times)))


def test_the_document_is_built_once_on_a_thread():
    app, builders = FastAPI(openapi_url=None), []
    app.state.services = Threads()
    app.openapi = lambda: builders.append(threading.current_thread()) or {"openapi": "3.1.0"}
    install_document(app)
    responses = asyncio.run(read_document(app, 4))
    assert [response.json() for response in responses] == [{"openapi": "3.1.0"}] * 4
    assert len(builders) == 1
    assert builders[0] is not threading.main_thread()


def test_the_document_has_what_routes_read_and_answer_without_fastapi():
    app = FastAPI()
    for part in PARTS:
        app.include_router(part.router)
    paths = app.openapi()["paths"]

    def statuses(path):
        return {status for status in paths[path]["get"]["responses"] if status.isdecimal()}

    def headers(path, method):
        return [each["name"] for each in paths[path][method]["parameters"] if each["in"] == "header"]

    assert statuses("/v1/videos/{video_id}/content") == {"200", "206", "302", "304"}
    assert statuses("/v1/videos/{video_id}/stream") == statuses("/objects/{token}") == {"200", "206", "304"}
    assert {} in paths["/v1/videos/{video_id}/stream"]["get"]["security"], "a link needs no key"
    creating = ["", "/edits", "/extensions", "/{video_id}/remix"]
    assert [headers(f"/v1/videos{path}", "post") for path in creating] == [["Idempotency-Key"]] * 4
    assert headers("/v1/videos/{video_id}/events", "get") == ["Last-Event-ID"]
    for path in ("/v1/videos/edits", "/v1/videos/extensions"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body["required"] == ["prompt", "video"]
    ready = paths["/readyz"]["get"]["responses"]
    assert ready["200"]["content"] == ready["503"]["content"] != {}


def test_no_route_lets_fastapi_read_a_body():
    # FastAPI reads it before it identifies the caller, and without limits.
    routes = [route for part in PARTS for route in part.router.routes if isinstance(route, APIRoute)]
    assert routes
    assert [route.path for route in routes if route.body_field is not None] == []
