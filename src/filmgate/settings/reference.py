"""Writes docs/settings.md from the settings tree: `make docs`."""

import sys
from collections.abc import Iterator
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from filmgate.settings import Settings

_INTRODUCTION = """\
# Settings

Filmgate reads `filmgate.toml` in the working folder, or the file that `FILMGATE_CONFIG` names, and then
the environment. Variables override the file. The setting `pipeline.crf` is `[pipeline] crf = 20` in the file
and `FILMGATE_PIPELINE__CRF=20` in the environment. An unknown key or an invalid value stops the start.
`filmgate config` prints every effective value and its source.

`make docs` writes this page. [Add a setting](how-to/add-a-setting.md) lists the steps.
"""


def to_markdown() -> str:
    """The whole page."""
    default = Settings()
    top = {name: field for name, field in Settings.model_fields.items() if not _is_section(default, name)}
    tables = [_to_table("", top, default)]
    for name in Settings.model_fields:
        if _is_section(default, name):
            section = getattr(default, name)
            heading = f"## {name}\n\n{getdoc(type(section))}\n\n"
            tables.append(heading + _to_table(f"{name}.", type(section).model_fields, section))
    return "\n".join((_INTRODUCTION, *tables))


def _is_section(settings: Settings, name: str) -> bool:
    return isinstance(getattr(settings, name), BaseModel)


def _to_table(prefix: str, fields: dict[str, FieldInfo], values: BaseModel) -> str:
    rows = (
        f"| `{prefix}{name}` | {_to_text(getattr(values, name))} | {_limits(field)} | {field.description} |\n"
        for name, field in fields.items()
    )
    return "| key | default | values | description |\n|---|---|---|---|\n" + "".join(rows)


def _to_text(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"`{value:g}`" if value < 1e6 else f"`{value:.0f}`"
    return f"`{value}`" if str(value) else "empty"


def _limits(field: FieldInfo) -> str:
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    if field.annotation is bool:
        return "`true`, `false`"
    return ", ".join(_bounds(field))


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in field.metadata:
        for name, text in (("ge", "at least"), ("gt", "more than"), ("le", "at most")):
            if (value := getattr(bound, name, None)) is not None:
                yield f"{text} {value:g}" if value < 1e6 else f"{text} {value}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(to_markdown())
