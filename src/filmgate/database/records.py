"""Small records in JSON columns. During an upgrade, processes of two versions read each other's rows."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


def read_record(kind: type[T], stored: Mapping[str, Any]) -> T:
    """A dataclass from its stored fields. Ignores fields of a newer version; missing fields have defaults."""
    adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]  # a class is hashable
    return adapter.validate_python(stored)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
