"""`filmgate config`: every effective setting and its source."""

import json
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
    report_data_folder(settings_with(data))
    if is_json:
        typer.echo(
            json.dumps(
                {o.key: {"value": masked(o.key, o.value), "source": o.source} for o in origins}, default=str
            )
        )
        return
    rows = [(o.key, str(masked(o.key, o.value)), o.source, o.description) for o in origins]
    key, value, source = (max(len(row[column]) for row in rows) for column in range(3))
    for row in rows:
        typer.echo(f"{row[0]:<{key}}  {row[1]:<{value}}  {row[2]:<{source}}  {row[3]}")
