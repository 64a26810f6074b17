"""The OpenAPI document: how it is served, and additions to what FastAPI derives from the routes."""

import json
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import BaseModel

from filmgate.api.forms import Form
from filmgate.api.services import services_of

OPENAPI_PATH = "/openapi.json"


class ProblemDetail(BaseModel):
    """An error: `param` names the field, `code` is for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ProblemBody(BaseModel):
    """The body of every error."""

    error: ProblemDetail


def install_document(app: FastAPI) -> None:
    """Serve the document. It is built once, on a thread: that takes a fifth of a second of CPU time."""
    lock, built = Lock(), list[bytes]()

    def read() -> bytes:
        with lock:
            if not built:
                built.append(json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode())
                app.openapi_schema = None  # the bytes are enough
        return built[0]

    async def openapi(request: Request) -> Response:
        body = built[0] if built else await services_of(request).call(read)
        return Response(body, media_type="application/json")

    app.add_route(OPENAPI_PATH, openapi, include_in_schema=False)


def form_body(form: type[Form], file: str | None = None) -> dict[str, Any]:
    """A request body: JSON, or multipart with an optional file."""
    schema = _inlined(form.model_json_schema())
    multipart = {**schema, "properties": dict(schema.get("properties", {}))}
    if file is not None:
        multipart["properties"][file] = {"type": "string", "format": "binary"}
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": multipart}}
    return {"requestBody": {"required": True, "content": content}}


def header(name: str, description: str, pattern: str) -> dict[str, Any]:
    """A header that the route reads itself."""
    schema = {"type": "string", "pattern": pattern}
    parameter = {
        "name": name,
        "in": "header",
        "required": False,
        "schema": schema,
        "description": description,
    }
    return {"parameters": [parameter]}


def file_responses(description: str, *media_types: str) -> dict[int | str, dict[str, Any]]:
    """A file, or a range of it."""
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in media_types}
    return {
        200: {"description": description, "content": content},
        206: {"description": "The requested range.", "content": content},
        304: {"description": "Not modified."},
    }


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without $defs, which are not allowed in a request body."""
    definitions = schema.pop("$defs", {})

    def expand(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return expand(definitions[node["$ref"].rpartition("/")[2]])
            return {key: expand(value) for key, value in node.items()}
        return [expand(item) for item in node] if isinstance(node, list) else node

    expanded: dict[str, Any] = expand(schema)
    return expanded


def links(status: int, parameter: str, **operations: str) -> dict[int | str, dict[str, Any]]:
    """What can be done next with the id in a response: by name, the method and the path of an operation."""
    found = {}
    for name, operation in operations.items():
        pointer = operation.partition(" ")[2].replace("/", "~1")
        ref = f"#/paths/{pointer}/{operation.partition(' ')[0].lower()}"
        found[name] = {"operationRef": ref, "parameters": {parameter: "$response.body#/id"}}
    return {status: {"links": found}}


def _problem(description: str) -> dict[str, Any]:
    schema = _inlined(ProblemBody.model_json_schema())
    return {"description": description, "content": {"application/json": {"schema": schema}}}


# Any route may respond with these.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": _problem("The request is invalid."),
    "5XX": _problem("The service failed."),
}
