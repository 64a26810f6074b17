"""`filmgate config`: every effective setting and its source."""

import json
import shutil
import sys
import textwrap
from dataclasses import replace

import typer

from filmgate.cli.data_folder import Data, report_data_folder, settings_with
from filmgate.cli.options import AsJson


def show_config(
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Print every effective setting and its source. Secrets are masked."""
    from filmgate.settings import read_settings
    from filmgate.settings.wording import masked
    from filmgate.slo.objectives import parse_objectives

    settings, origins = read_settings()
    parse_objectives(settings.slo, settings.admission.slo_seconds)  # refuses what `serve` refuses
    if data is not None:
        origins = [replace(o, value=data, source="--data") if o.key == "data" else o for o in origins]
    origins = [replace(o, value=masked(o.key, o.value)) for o in origins]
    report_data_folder(settings_with(data))
    if is_json:
        shown = {o.key: {"value": o.value, "source": o.source} for o in origins}
        typer.echo(json.dumps(shown, default=str))
        return
    rows = [(o.key, json.dumps(o.value, default=str), o.source, o.description) for o in origins]
    typer.echo(_to_paragraphs(rows) if sys.stdout.isatty() else _to_table(rows))


def _to_table(rows: list[tuple[str, str, str, str]]) -> str:
    """A line per setting, for grep."""
    key, value, source = (max(len(row[column]) for row in rows) for column in range(3))
    return "\n".join(f"{row[0]:<{key}}  {row[1]:<{value}}  {row[2]:<{source}}  {row[3]}" for row in rows)


def _to_paragraphs(rows: list[tuple[str, str, str, str]]) -> str:
    """Two or more lines per setting, which a terminal does not wrap."""
    width, indent = shutil.get_terminal_size().columns, " " * 4
    return "\n".join(
        f"{key} = {value}  ({source})\n"
        + textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
        for key, value, source, text in rows
    )
