"""`filmgate slo`: attainment of the objectives, and the rules, alarms and dashboards that watch them."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import Data, opened_database, settings_with
from filmgate.cli.options import AsJson
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.slo.report import Attainment

slo = typer.Typer(
    help="Show SLO attainment; print alert rules, alarms and dashboards.", invoke_without_command=True
)

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
Runbooks = Annotated[
    str | None,
    typer.Option(help="Base URL of the runbooks.  [default: slo.runbooks]", metavar="URL"),
]


@slo.callback()
def show_slo(
    context: typer.Context,
    is_by_tenant: Annotated[
        bool, typer.Option("--by-tenant", help="Print one row per tenant and clip class.")
    ] = False,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Print attainment, error budget and burn rates, from the database only."""
    if context.invoked_subcommand is not None:
        return
    from filmgate.slo.report import SloReport

    settings = settings_with(data)
    with opened_database(settings) as database:
        report = SloReport(database, settings)
        found = report.read(is_by_tenant=is_by_tenant)
    if is_json:
        typer.echo(json.dumps(report.to_shape(found)))
        return
    if not found:
        typer.echo(f"no job has finished in the last {settings.slo.window_seconds / 86400:g} days")
    for attainment in found:
        typer.echo(_to_line(attainment))


@slo.command("rules")
def print_rules(
    runbooks: Runbooks = None,
    gpu_metrics: Annotated[
        str, typer.Option(help="Metrics for GPU alerts: filmgate (workers) or dcgm (DCGM exporter).")
    ] = "filmgate",
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            help="Use only series with this label, if one Prometheus scrapes several releases. Repeat it "
            "for more.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    dcgm_labels: Annotated[
        list[str] | None,
        typer.Option(
            "--dcgm-label",
            help="The same for series of the DCGM exporter, which has its own labels.",
            metavar="NAME=VALUE",
        ),
    ] = None,
) -> None:
    """Print a Prometheus rules file: recording rules and alerts."""
    from filmgate.settings import load_settings
    from filmgate.slo.gpu_alerts import GpuMetrics
    from filmgate.slo.rules import Release, rules_file

    if gpu_metrics not in set(GpuMetrics):
        raise UsageError(f"{gpu_metrics!r} is not one of filmgate, dcgm", option="--gpu-metrics")
    release = Release(_to_labels(labels, "--label"), _to_labels(dcgm_labels, "--dcgm-label"))
    chosen = load_settings().slo.runbooks if runbooks is None else runbooks
    typer.echo(rules_file(chosen, GpuMetrics(gpu_metrics), release), nl=False)


def _to_labels(texts: list[str] | None, option: str) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or ()]
    for name, _, value in pairs:
        if not _LABEL.fullmatch(name) or not value:
            raise UsageError(f"{name!r} is not NAME=VALUE, such as namespace=films", option=option)
    return {name: value for name, _, value in pairs}


@slo.command("alarms")
def print_alarms(
    topic: Annotated[
        str, typer.Option(help="ARN of the SNS topic that receives alarms.", metavar="ARN")
    ] = "",
    runbooks: Runbooks = None,
) -> None:
    """Print the same alerts as CloudWatch alarms, as input for `aws cloudwatch put-metric-alarm`."""
    from filmgate.settings import load_settings
    from filmgate.slo.cloudwatch import alarm_documents

    settings = load_settings()
    chosen = settings.slo.runbooks if runbooks is None else runbooks
    alarms = alarm_documents(settings.admission.promise_seconds, chosen, topic)
    typer.echo(json.dumps({"alarms": alarms}, indent=1))


@slo.command("dashboards")
def write_dashboards(
    folder: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write the files to.")
    ] = None,
) -> None:
    """Print the Grafana dashboards as JSON, or write one file per dashboard."""
    from filmgate.slo.dashboards import all_dashboards

    dashboards = all_dashboards()
    if folder is None:
        typer.echo(json.dumps(dashboards, indent=1))
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, dashboard in dashboards.items():
            path = folder / f"{name}.json"
            path.write_text(json.dumps(dashboard, indent=1) + "\n")
            typer.echo(str(path))
    except OSError as exc:
        message = f"{folder} cannot be written: {exc.strerror}; choose another folder"
        raise UsageError(message, option="--output") from exc


def _to_line(found: "Attainment") -> str:
    attained = "-" if found.attained is None else f"{found.attained:.2%}"
    left = "-" if found.budget_left is None else f"{found.budget_left:.0%}"
    burn = "  ".join(
        f"{name} {'-' if rate is None else f'{rate:.1f}'}" for name, rate in found.burn_rates.items()
    )
    whom = f"{found.tenant} {found.name}" if found.tenant else found.name
    goal = f"{100 * found.target:.4g}% in {found.objective_seconds:g} s"
    return (
        f"{whom:<20} {found.jobs:>6} jobs  {attained:>7} of {goal}, budget left {left}\n  burn rate  {burn}"
    )
