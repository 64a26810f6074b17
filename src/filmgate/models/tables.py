"""Reads TOML with one table per name: model cards and LoRA adapters."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from filmgate.errors import SettingsError
from filmgate.settings.wording import explain

T = TypeVar("T")


def read_text(file: str, option: str) -> str:
    """The text of an operator's file. Raises SettingsError that names the setting."""
    try:
        return Path(file).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{file} cannot be read: {exc}", option=option) from exc


def read_tables(kind: type[T], text: str, source: str, option: str) -> dict[str, T]:
    """One `kind` per table, named like the table. Raises SettingsError naming the key that is wrong."""
    tables = TypeAdapter(dict[str, kind], config=ConfigDict(extra="forbid"))  # type: ignore[valid-type]
    try:
        tree = tomllib.loads(text)
        return tables.validate_python({name: _named(name, table) for name, table in tree.items()})
    except tomllib.TOMLDecodeError as exc:
        raise SettingsError(f"{source}: {exc}", option=option) from exc
    except ValidationError as exc:
        first = exc.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{source}: {explain(key, first)}", option=option) from exc


def _named(name: str, table: object) -> object:
    return {**table, "name": name} if isinstance(table, Mapping) else table
