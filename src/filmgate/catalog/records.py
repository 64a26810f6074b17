"""Parses rows of data files into catalog records with pydantic.

Records are frozen dataclasses. Unknown keys, NaN and infinity are rejected everywhere. Numbers in TOML and
JSON must be numbers; cells of a CSV file are converted, and an empty cell takes the field's default.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from filmgate.errors import UsageError

Parsed = TypeVar("Parsed")
Record = TypeVar("Record")
Location = tuple[int | str, ...]

Number = Annotated[float, Field(strict=True)]
Amount = Annotated[float, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0, strict=True)]
Count = Annotated[int, Field(ge=0, strict=True)]
PositiveCount = Annotated[int, Field(gt=0, strict=True)]
IsoDate = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=ConfigDict(extra="forbid", allow_inf_nan=False))


def parse_record(kind: type[Record], row: object, source: str, option: str | None = None) -> Record:
    """One row. Raises UsageError naming the source and the key."""
    (record,) = _parse(list[kind], [row], lambda _: source, option)  # type: ignore[valid-type]
    parsed: Record = record
    return parsed


def parse_rows(kind: type[Parsed], rows: object, source: str, option: str | None = None) -> Parsed:
    """Rows as `kind`: `list[Record]` or `dict[str, Record]`. Raises UsageError naming source, row and key."""

    def where(row: Location) -> str:
        return source + "".join(f": row {r + 1}" if isinstance(r, int) else f": {r}" for r in row)

    parsed: Parsed = _parse(kind, rows, where, option)
    return parsed


def parse_csv(kind: type[Record], text: str, source: str, option: str | None = None) -> list[Record]:
    """The rows of a CSV file with a header. Raises UsageError naming the source, the line and the column."""
    rows = [
        {name or "(column without a header)": cell for name, cell in row.items() if cell not in ("", None)}
        for row in csv.DictReader(io.StringIO(text))
    ]

    def where(row: Location) -> str:
        return f"{source} line {int(row[0]) + 2}"  # after the header, counted from 1

    parsed: list[Record] = _parse(list[kind], rows, where, option, is_strict=False)  # type: ignore[valid-type]
    return parsed


def _parse(
    kind: Any,
    rows: object,
    where: Callable[[Location], str],
    option: str | None,
    *,
    is_strict: bool | None = None,
) -> Any:
    """A list or dict of records. `where` names the row of an error, whose location is empty or one key."""
    try:
        return _adapter(kind).validate_python(rows, strict=is_strict)
    except ValidationError as exc:
        error = _most_useful(exc)
        problem = _describe(get_args(kind)[-1], error, error["loc"][1:])
        raise UsageError(f"{where(error['loc'][:1])}: {problem}", option=option) from exc


def read_text(path: Path, option: str) -> str:
    """The text of a user's file, without the byte order mark of some editors. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option=option) from exc


def read_json(path: Path, option: str) -> object:
    """The content of a user's JSON file. Raises UsageError."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option=option) from exc


def with_keys(table: object, field: str) -> object:
    """A table of rows with each row's key stored in `field`. Other values are left for parsing to reject."""
    if not isinstance(table, Mapping):
        return table
    return {key: {field: key, **row} if isinstance(row, Mapping) else row for key, row in table.items()}


def _most_useful(exc: ValidationError) -> ErrorDetails:
    """An unknown key first: pydantic also reports a misspelled key as missing."""
    errors = exc.errors()
    return next((e for e in errors if e["type"] == "unexpected_keyword_argument"), errors[0])


def _describe(kind: Any, error: ErrorDetails, loc: Location) -> str:
    """What is wrong at `loc`, a path inside a record of this kind."""
    if error["type"] == "unexpected_keyword_argument":
        return f"{_path(loc[:-1])}unknown key {loc[-1]}{_hint(kind, loc)}"
    if error["type"] == "missing":
        return f"{_path(loc).removesuffix(': ')} is missing"
    message = error["msg"]
    return f"{_path(loc)}{message[0].lower()}{message[1:]}, got {error['input']!r}"


def _hint(kind: Any, loc: Location) -> str:
    if len(loc) > 1:  # a key of a nested record
        return ""
    known = [field.name for field in fields(kind)]
    near = get_close_matches(str(loc[0]), known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(known)}"


def _path(loc: Location) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return f"{text.removeprefix('.')}: " if loc else ""
