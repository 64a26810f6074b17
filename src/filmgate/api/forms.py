"""Request bodies: JSON, multipart with bracketed keys, and URL-encoded, parsed to the same structure."""

import hashlib
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TypeAlias

from fastapi import Request
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser

from filmgate.errors import InvalidField, UploadTooLarge

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

_KEY = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of a request, its files, and a digest that is equal for equal requests."""

    fields: dict[str, Json] = field(repr=False)
    files: dict[str, bytes] = field(repr=False)
    digest: str


class _MemoryParser(MultiPartParser):
    """Keeps uploads in memory: a spooled file would be unencrypted on disk."""

    spool_max_size = 1 << 40


async def read_body(request: Request, max_bytes: int) -> Body:
    """Parse the body. Raises InvalidField and UploadTooLarge."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    stream = _limited(request, max_bytes)
    files: dict[str, bytes] = {}
    if kind == "multipart/form-data":
        fields, files = await _read_multipart(request.headers, stream, max_bytes)
    elif kind == "application/x-www-form-urlencoded":
        form = await FormParser(request.headers, stream).parse()
        fields = unbracket([(key, value) for key, value in form.multi_items() if isinstance(value, str)])
    elif kind in ("application/json", ""):
        fields = _read_json(b"".join([chunk async for chunk in stream]))
    else:
        raise InvalidField("the body must be application/json or multipart/form-data", option="body")
    return Body(fields, files, _digest(request.url.path, fields, files))


async def _read_multipart(
    headers: Headers, stream: AsyncGenerator[bytes, None], max_bytes: int
) -> tuple[dict[str, Json], dict[str, bytes]]:
    parser = _MemoryParser(headers, stream, max_files=4, max_fields=100, max_part_size=max_bytes)
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeDecodeError, KeyError) as exc:
        raise InvalidField("the multipart body is malformed", option="body") from exc
    texts = [(key, value) for key, value in form.multi_items() if isinstance(value, str)]
    files = {}
    for key, value in form.multi_items():
        if isinstance(value, UploadFile):
            files[key] = await value.read()
            await value.close()
    return unbracket(texts), files


def unbracket(items: list[tuple[str, str]]) -> dict[str, Json]:
    """`a[b]=1` becomes {"a": {"b": "1"}}, `a[]=1` becomes {"a": ["1"]}."""
    tree: dict[str, Json] = {}
    for key, value in items:
        match = _KEY.fullmatch(key)
        if match is None:
            raise InvalidField("a form key is malformed", option="body")
        path = [match[1], *re.findall(r"\[([^\[\]]*)\]", match[2])]
        if len(path) > _MAX_DEPTH:
            raise InvalidField("a form key is nested too deeply", option=match[1][:100])
        _insert(tree, path, value)
    return tree


def _insert(tree: dict[str, Json], path: list[str], value: str) -> None:
    head, *rest = path
    if rest == [""]:
        values = tree.setdefault(head, [])
        if isinstance(values, list):
            values.append(value)
            return
    elif not rest:
        if head not in tree:
            tree[head] = value
            return
    else:
        child = tree.setdefault(head, {})
        if isinstance(child, dict):
            _insert(child, rest, value)
            return
    raise InvalidField("the field occurs twice", option=head[:100])


def _read_json(data: bytes) -> dict[str, Json]:
    try:
        tree = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise InvalidField("the body is not JSON", option="body") from exc
    if not isinstance(tree, dict):
        raise InvalidField("the body is not a JSON object", option="body")
    return tree


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _digest(path: str, fields: dict[str, Json], files: dict[str, bytes]) -> str:
    """A digest of the content, not of the bytes: a retried multipart body has another boundary."""
    digests = {key: hashlib.sha256(data).hexdigest() for key, data in files.items()}
    text = json.dumps([path, fields, digests], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise UploadTooLarge(f"the body is larger than {max_bytes} bytes", option="body")
        yield chunk
