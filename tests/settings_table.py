"""The table in docs/settings.md, made from the settings. `python -m tests.settings_table` writes it."""

import re
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

from filmgate.settings import Settings

PAGE = Path(__file__).parents[1] / "docs/settings.md"
HEAD = ["| key | default | values | description |", "|---|---|---|---|"]
_TABLE = re.compile(r"^\| key .*?\n(?=\n|\Z)", re.DOTALL | re.MULTILINE)


def make_table():
    return "\n".join([*HEAD, *_rows(Settings())]) + "\n"


def read_table():
    return _TABLE.search(PAGE.read_text())[0]


def _rows(section, prefix=""):
    for name, field in type(section).model_fields.items():
        default = getattr(section, name)
        if isinstance(default, BaseModel):
            yield from _rows(default, f"{prefix}{name}.")
        else:
            yield f"| `{prefix}{name}` | {_show(default)} | {_values(field)} | {field.description} |"


def _show(default):
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return f"`{text.removesuffix('.0')}`" if text else "empty"


def _values(field):
    """The allowed values of a setting, empty for any text."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(field.annotation))
    if field.annotation is bool:
        return "`true`, `false`"
    bounds = {
        name: value
        for each in field.metadata
        for name in ("ge", "gt", "le")
        if (value := getattr(each, name, None)) is not None
    }
    low = f"at least {bounds['ge']}" if "ge" in bounds else f"above {bounds['gt']}" if "gt" in bounds else ""
    high = f"at most {bounds['le']}" if "le" in bounds else ""
    return ", ".join(part for part in (low, high) if part)


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(make_table().replace("\\", r"\\"), PAGE.read_text()))
