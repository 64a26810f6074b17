"""Request bodies: JSON, multipart with bracketed keys, and URL-encoded, parsed to the same structure."""

import hashlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import AliasChoices, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails
from python_multipart.multipart import parse_options_header
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from filmgate.api.services import services_of
from filmgate.api.spool import SpooledUpload
from filmgate.errors import InvalidField, UploadTooLarge
from filmgate.settings.wording import explain
from filmgate.tenants.base import Tenant

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
Fields = dict[str, Json]
Files = dict[str, SpooledUpload]

_KEY = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_MAX_DEPTH = 4
_MAX_FIELDS = 100
_MAX_FILES = 4
# A string without its end extends to the end of the data, so that the search takes linear time.
_STRING_OR_COMMA = re.compile(rb'"(?:[^"\\]+|\\.)*+"?|,', re.DOTALL)
_CHARSETS = (b"", b"utf-8", b"utf8", b"us-ascii")


@dataclass(frozen=True, slots=True)
class Body:
    """The fields of a request, its files, and a digest that is equal for equal requests."""

    fields: Fields = field(repr=False)
    files: Files = field(repr=False)
    digest: str


class Form(BaseModel):
    """A request body. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


F = TypeVar("F", bound=Form)


async def read_form(request: Request, tenant: Tenant, form: type[F]) -> F:
    """The body of the request as this form, without files. Raises what `reading` and `parse_form` raise.

    Routes do not let FastAPI read a body: it would do so before it identifies the caller, and without limits.
    """
    async with reading(request, tenant) as body:
        return parse_form(form, body)


def parse_form(form: type[F], body: Body, file: str | None = None) -> F:
    """The body as this form; `file` is the only field that may be a file.

    Raises InvalidField that names the first invalid field.
    """
    for name in body.files:
        if name != file:
            raise InvalidField("this field cannot be a file", option=name[:100])
        if name in body.fields:
            raise _twice(name)
    try:
        return form.model_validate(body.fields)
    except ValidationError as exc:
        raise _invalid_field(form, exc.errors()[0]) from exc


def _invalid_field(form: type[Form], error: ErrorDetails) -> InvalidField:
    name = ".".join(str(part) for part in error["loc"])[:100]
    if error["type"] == "extra_forbidden":
        if _is_alias(form, name):
            return _twice(name)
        near = get_close_matches(name, form.model_fields, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return InvalidField(f"{name} is not a field of this request{hint}", option=name)
    return InvalidField(explain(name, error), option=name)


def _is_alias(form: type[Form], name: str) -> bool:
    """Whether a field has this name too. It is extra only if the field was also sent under another name."""
    aliases = [each.validation_alias for each in form.model_fields.values()]
    return any(isinstance(alias, AliasChoices) and name in alias.choices for alias in aliases)


@asynccontextmanager
async def reading(request: Request, tenant: Tenant) -> AsyncIterator[Body]:
    """The body of the request; its files count as uploads of the tenant and are deleted at the end.

    Raises InvalidField, UploadTooLarge and RateLimited.
    """
    services = services_of(request)
    with ExitStack() as held:

        def open_spool(option: str) -> SpooledUpload:
            held.enter_context(services.edge.uploads.holding(tenant.id))
            return held.enter_context(closing(SpooledUpload(option, services.spool_folder)))

        max_bytes = services.edge.limits.max_form_bytes
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        files: Files = {}
        if kind == "multipart/form-data":
            stream = _limited(request, services.settings.max_body_bytes, "send a smaller file")
            fields, files = await _read_multipart(request.headers, stream, max_bytes, open_spool)
        elif kind == "application/x-www-form-urlencoded":
            fields = _read_urlencoded(await _read(request, max_bytes))
        elif kind in ("application/json", ""):
            fields = _read_json(await _read(request, max_bytes))
        else:
            raise InvalidField("the body must be application/json or multipart/form-data", option="body")
        yield Body(fields, files, _digest(request.scope["path"], fields, files))


class _SpoolingParser(MultiPartParser):
    """Writes files to encrypted spools and limits the sum of all text fields."""

    def __init__(
        self,
        headers: Headers,
        stream: AsyncGenerator[bytes, None],
        max_text_bytes: int,
        open_spool: Callable[[str], SpooledUpload],
    ) -> None:
        super().__init__(
            headers, stream, max_files=_MAX_FILES, max_fields=_MAX_FIELDS, max_part_size=max_text_bytes
        )
        self._open_spool = open_spool
        self._text_bytes = 0

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        upload = self._current_part.file
        if upload is not None:
            upload.file.close()
            upload.file = self._open_spool(self._current_part.field_name)  # type: ignore[assignment]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is None:
            self._text_bytes += end - start
            if self._text_bytes > self.max_part_size:
                raise _too_large("text of the form", self.max_part_size, "send less text")
        super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        if self._current_part.file is None:
            self._current_part.data.decode()  # Starlette reads as Latin-1 what is not UTF-8
        super().on_part_end()


async def _read_multipart(
    headers: Headers,
    stream: AsyncGenerator[bytes, None],
    max_text_bytes: int,
    open_spool: Callable[[str], SpooledUpload],
) -> tuple[Fields, Files]:
    """The fields and the files by name."""
    # RFC 7578 defines no charset; some of Python's codecs are not for text.
    _, options = parse_options_header(headers["content-type"])
    if options.get(b"charset", b"").lower() not in _CHARSETS:
        raise InvalidField("the charset of a multipart body must be utf-8", option="body")
    try:
        form = await _SpoolingParser(headers, stream, max_text_bytes, open_spool).parse()
    except (MultiPartException, UnicodeError, KeyError) as exc:
        raise InvalidField(
            f"the multipart body is malformed or not UTF-8, or has more than {_MAX_FIELDS} fields or "
            f"{_MAX_FILES} files",
            option="body",
        ) from exc
    items = form.multi_items()
    files: Files = {}
    for key, value in items:
        if isinstance(value, UploadFile):
            if key in files:
                raise _twice(key)
            files[key] = cast("SpooledUpload", value.file)
    return unbracket([(key, value) for key, value in items if isinstance(value, str)]), files


def _read_urlencoded(data: bytes) -> Fields:
    try:
        items = parse_qsl(data.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError as exc:
        raise InvalidField(
            f"the form is not UTF-8, or has more than {_MAX_FIELDS} fields", option="body"
        ) from exc
    return unbracket(items)


def unbracket(items: list[tuple[str, str]]) -> Fields:
    """`a[b]=1` becomes {"a": {"b": "1"}}, `a[]=1` becomes {"a": ["1"]}."""
    tree: Fields = {}
    for key, value in items:
        match = _KEY.fullmatch(key)
        if match is None:
            raise InvalidField("a form key is malformed", option="body")
        path = [match[1], *re.findall(r"\[([^\[\]]*)\]", match[2])]
        if len(path) > _MAX_DEPTH:
            raise InvalidField("a form key is nested too deeply", option=match[1][:100])
        _insert(tree, path, value)
    return tree


def _insert(tree: Fields, path: list[str], value: str) -> None:
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
    raise _twice(head)


def _twice(name: str) -> InvalidField:
    return InvalidField("the field occurs twice; send it once", option=name[:100])


def _read_json(data: bytes) -> Fields:
    if _has_too_many_commas(data):
        raise _too_many_values()
    try:
        tree = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_to_object)
    except (ValueError, RecursionError) as exc:
        raise InvalidField("the body is not JSON", option="body") from exc
    if not isinstance(tree, dict):
        raise InvalidField("the body is not a JSON object", option="body")
    _check_count(tree)
    _check_unicode(tree)
    return tree


def _has_too_many_commas(data: bytes) -> bool:
    """Whether the text has more values than allowed. Far cheaper than to parse all of them."""
    if data.count(b",") < _MAX_FIELDS:
        return False
    commas = strings = 0
    for match in _STRING_OR_COMMA.finditer(data):
        is_comma = match[0] == b","
        commas, strings = commas + is_comma, strings + (not is_comma)
        # All but the last value of an object or a list have a comma, and a value has at most one key.
        if commas >= _MAX_FIELDS or strings > 2 * _MAX_FIELDS:
            return True
    return False


def _too_many_values() -> InvalidField:
    return InvalidField(f"the body has more than {_MAX_FIELDS} values", option="body")


def _check_count(tree: Fields) -> None:
    """Limits the values at all depths: validation takes time and memory for each of them."""
    count = 0
    rest: list[Fields | list[Json]] = [tree]
    while rest:
        node = rest.pop()
        count += len(node)
        if count > _MAX_FIELDS:
            raise _too_many_values()
        values = node.values() if isinstance(node, dict) else node
        rest.extend(value for value in values if isinstance(value, dict | list))


def _check_unicode(tree: Fields) -> None:
    """Refuses half of a surrogate pair in any key or value: it can be neither hashed nor sent back.

    Bytes can contain one too, not only escapes: `json.loads` decodes them with `surrogatepass`.
    """
    try:
        json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeEncodeError as exc:
        raise InvalidField(
            r"the text is not valid Unicode: escapes from \ud800 to \udfff are valid only in pairs",
            option="body",
        ) from exc


def _to_object(pairs: list[tuple[str, Json]]) -> Fields:
    fields: Fields = {}
    for name, value in pairs:
        if name in fields:
            raise _twice(name)
        fields[name] = value
    return fields


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def _digest(path: str, fields: Fields, files: Files) -> str:
    """A digest of the content, not of the bytes: a retried multipart body has another boundary."""
    digests = {key: file.sha256 for key, file in files.items()}
    text = json.dumps([path, fields, digests], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


async def _read(request: Request, max_bytes: int) -> bytes:
    chunks = _limited(request, max_bytes, "send files as multipart/form-data")
    return b"".join([chunk async for chunk in chunks])


async def _limited(request: Request, max_bytes: int, remedy: str) -> AsyncGenerator[bytes, None]:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large("body", max_bytes, remedy)
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large("body", max_bytes, remedy)
        yield chunk


def _too_large(what: str, max_bytes: int, remedy: str) -> UploadTooLarge:
    return UploadTooLarge(f"the {what} is larger than {max_bytes} bytes; {remedy}", option="body")
