"""`filmgate config`: every effective setting and its source."""

import json
import shutil
import textwrap
from dataclasses import replace

import typer

from filmgate.cli.data_folder import Data, report_data_folder, settings_with
from filmgate.cli.options import AsJson


def show_config(data: Data = None, is_json: AsJson = False) -> None:
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
    width, indent = shutil.get_terminal_size().columns, " " * 4
    for o in origins:
        typer.echo(f"{o.key} = {json.dumps(o.value, default=str)}  ({o.source})")
        typer.echo(textwrap.fill(o.description, width, initial_indent=indent, subsequent_indent=indent))
