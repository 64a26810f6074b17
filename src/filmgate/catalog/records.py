"""Rows of a data file into frozen dataclasses: every key known, an empty cell is None."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from filmgate.errors import UsageError

Record = TypeVar("Record")
RENAMED = {"class": "class_name"}


def to_record(kind: type[Record], row: Mapping[str, object], where: str) -> Record:
    """One row as `kind`; raises UsageError naming the file, the row and the key."""
    values = {RENAMED.get(name, name): value for name, value in row.items()}
    known, hints = _schema(cast("Any", kind))
    for name in values.keys() - known.keys():
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
        raise UsageError(f"{where}: unknown key {name}; {hint}")
    absent = [name for name, field in known.items() if name not in values and not _has_default(field)]
    if absent:
        raise UsageError(f"{where}: {', '.join(absent)} missing")
    return kind(**{name: _convert(value, hints[name], f"{where}.{name}") for name, value in values.items()})


@cache
def _schema(kind: type) -> tuple[dict[str, Field[Any]], dict[str, Any]]:
    return {field.name: field for field in fields(cast("Any", kind))}, get_type_hints(kind)


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _convert(value: object, hint: Any, where: str) -> object:
    if get_origin(hint) is UnionType:
        if value is None or value == "":
            return None
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        return _to_tuple(value, get_args(hint), where)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return to_record(cast("type[object]", hint), value, where)
    return _to_scalar(value, hint, where)


def _to_tuple(value: object, parts: tuple[Any, ...], where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{where}: a list is expected, got {value!r}")
    hints = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
    if len(hints) != len(value):
        raise UsageError(f"{where}: {len(hints)} values are expected, got {len(value)}")
    return tuple(
        _convert(item, hint, f"{where}[{i}]") for i, (item, hint) in enumerate(zip(value, hints, strict=True))
    )


def _to_scalar(value: object, hint: Any, where: str) -> object:
    if hint in (int, float) and isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            number = float(value)
            return int(number) if hint is int and number.is_integer() else number
        except ValueError as exc:
            raise UsageError(f"{where}: a number is expected, got {value!r}") from exc
    if get_origin(hint) is not None or isinstance(value, hint):
        return value
    raise UsageError(f"{where}: {getattr(hint, '__name__', hint)} is expected, got {value!r}")
