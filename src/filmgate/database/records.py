"""Small records in JSON columns. During an upgrade, processes of two versions read each other's rows."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def read_record(kind: type[T], stored: Mapping[str, Any]) -> T:
    """A dataclass from its stored fields, without those of a newer version. Missing ones have defaults."""
    return kind(**{f.name: stored[f.name] for f in fields(kind) if f.name in stored})  # type: ignore[arg-type]
