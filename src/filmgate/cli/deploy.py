"""`filmgate deploy`: values for the Helm chart from a plan, a check against the plan, and migration."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from filmgate.cli.data_folder import Data, opened_database, settings_with
from filmgate.cli.deploy_replay import replay_scaling
from filmgate.cli.options import AsJson
from filmgate.cli.plan.options import UserFile
from filmgate.errors import RunError, UsageError

deploy = typer.Typer(
    help="Print Helm values for a plan, check an installation against it, migrate the database, simulate "
    "the autoscaler.",
    no_args_is_help=True,
)

PlanFile = Annotated[Path, typer.Option("--plan", help="File written by `filmgate plan video --json`.")]
_TIMEOUT_SECONDS = 20.0
_MANAGED = (
    "the plan recommends a managed provider; these are the values of the fleet that it was compared with"
)


@deploy.command("values")
def print_values(
    plan: PlanFile,
    model_name: Annotated[str, typer.Option(help="Name of the model in the API.")],
    model: Annotated[str, typer.Option(help="s3://BUCKET/models/NAME/vN/, or another location.")] = "",
    tenant: Annotated[
        list[str] | None, typer.Option(help="A tenant with its own workers, if the plan separates tenants.")
    ] = None,
    catalog_file: UserFile = None,
) -> None:
    """Print Helm values for the fleet of a plan, as JSON, which helm reads as YAML."""
    from filmgate.cli.plan.inputs import open_catalog
    from filmgate.deploy.plan import read_plan
    from filmgate.deploy.values import build_values
    from filmgate.models.names import NamedModel

    fleet = read_plan(plan)
    if fleet.is_managed:
        typer.echo(_MANAGED, err=True)
    name = fleet.deployment.instance_type
    machine = open_catalog(catalog_file, None).instances.get(name)
    if machine is None:
        raise UsageError(
            f"the catalog has no instance type {name}; plan without --gpu, or give the plan's --catalog",
            option="--plan",
        )
    values = build_values(fleet, machine, NamedModel(model_name, model or model_name), tenant or ())
    typer.echo(json.dumps(values, indent=2))


@deploy.command("check")
def check(
    plan: PlanFile,
    url: Annotated[str, typer.Option(help="URL of the API, such as http://127.0.0.1:8000.")],
    key_file: Annotated[Path, typer.Option(help="File with an API key that has the `admin` scope.")],
    model_name: Annotated[str, typer.Option(help="Name of the model in the API.")],
    is_json: AsJson = False,
) -> None:
    """Compare a running installation with its plan: workers, seconds per clip, latency."""
    from filmgate.deploy.comparison import compare
    from filmgate.deploy.measurements import read_measured
    from filmgate.deploy.plan import read_plan
    from filmgate.telemetry.findings import Verdict

    planned = read_plan(plan)
    measured = read_measured(_read_metrics(url, key_file), model_name)
    findings = list(compare(planned, measured))
    if is_json:
        typer.echo(json.dumps({"measured": asdict(measured), "findings": [asdict(one) for one in findings]}))
    else:
        for finding in findings:
            remedy = f"; {finding.remedy}" if finding.remedy else ""
            typer.echo(f"{finding.verdict:4}  {finding.subject}: {finding.message}{remedy}")
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)


@deploy.command("migrate")
def migrate(data: Data = None) -> None:
    """Create or upgrade the database schema: the database in queue.url, or SQLite in the data folder."""
    with opened_database(settings_with(data), may_create=True):
        pass  # opening it migrates it
    typer.echo("the schema is up to date")


deploy.command("replay")(replay_scaling)


def _read_metrics(url: str, key_file: Path) -> str:
    import httpx

    from filmgate.client.protocol import check_url, read_key_file

    url = check_url(url)
    headers = {"Authorization": f"Bearer {read_key_file(key_file, '--key-file')}"}
    try:
        answer = httpx.get(f"{url}/metrics", headers=headers, timeout=_TIMEOUT_SECONDS)
    except httpx.HTTPError as exc:
        raise RunError(f"{url} cannot be reached: {exc}; check --url, and that the server runs") from exc
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise UsageError(
            "the key is not valid or lacks the `admin` scope; see `filmgate tenant set --scopes`",
            option="--key-file",
        )
    if answer.status_code != httpx.codes.OK:
        raise RunError(f"{url}/metrics returned {answer.status_code}; check that --url is the URL of the API")
    return answer.text
