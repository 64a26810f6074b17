"""What our OpenAPI document says beyond what the routes say themselves."""

from typing import Any

from filmgate.api.schemas import Asked, ProblemBody


def form_body(form: type[Asked], file: str | None = None) -> dict[str, Any]:
    """A body in both eras of the SDK: JSON, or multipart with an optional file."""
    schema = _inlined(form.model_json_schema())
    multipart = {**schema, "properties": dict(schema.get("properties", {}))}
    if file is not None:
        multipart["properties"][file] = {"type": "string", "format": "binary"}
    content = {"application/json": {"schema": schema}, "multipart/form-data": {"schema": multipart}}
    return {"requestBody": {"required": True, "content": content}}


# What a route says that reads the key itself instead of depending on it.
KEYED: dict[str, Any] = {"security": [{"HTTPBearer": []}]}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without $defs: a request body is not a place components can be added from."""
    definitions = schema.pop("$defs", {})

    def expand(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return expand(definitions[node["$ref"].rpartition("/")[2]])
            return {key: expand(value) for key, value in node.items()}
        return [expand(item) for item in node] if isinstance(node, list) else node

    expanded: dict[str, Any] = expand(schema)
    return expanded


def _problem(description: str) -> dict[str, Any]:
    schema = _inlined(ProblemBody.model_json_schema())
    return {"description": description, "content": {"application/json": {"schema": schema}}}


# Any 4XX or 5XX may come from any route, always in the one form.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": _problem("The request cannot be served as it is."),
    "5XX": _problem("The service cannot serve it now."),
}
