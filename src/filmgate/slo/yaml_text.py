"""Writes mappings, lists and texts as YAML. Strings are quoted as in JSON, which YAML includes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Node: TypeAlias = "str | int | float | bool | Mapping[str, Node] | Sequence[Node] | None"


def to_yaml(node: Node) -> str:
    """The document, with a line end."""
    return "\n".join(_lines(node)) + "\n"


def _lines(node: Node, indent: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if _is_nested(value):
                yield f"{indent}{key}:"
                yield from _lines(value, indent + "  ")
            else:
                yield f"{indent}{key}: {json.dumps(value)}"
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for item in node:
            first, *rest = _lines(item, indent + "  ") if _is_nested(item) else [json.dumps(item)]
            yield f"{indent}- {first.strip()}"
            yield from rest
    else:
        yield f"{indent}{json.dumps(node)}"


def _is_nested(node: Node) -> bool:
    return isinstance(node, Mapping | Sequence) and not isinstance(node, str) and len(node) > 0
