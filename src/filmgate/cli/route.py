"""`filmgate route`: why a job is on its route, for operators."""

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import Data, opened_database, settings_with
from filmgate.cli.options import AsJson, read_tenant, read_video
from filmgate.errors import JobNotFound
from filmgate.jobs import JobId, TenantId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from filmgate.jobs import Job
    from filmgate.scheduling.records import JobEvent
    from filmgate.settings import Settings


def show_route(
    job: Annotated[str, typer.Argument(help="Id of the job: video_...", show_default=False)],
    tenant: Annotated[str, typer.Option(help="Tenant of the job.")] = "local",
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Print a job's route, the reason with its numbers, and all route changes. Clients do not see this."""
    found, events = read_job(read_tenant(tenant), read_video(job, "JOB"), settings_with(data))
    moves = [event for event in events if event.route is not None]
    if is_json:
        typer.echo(json.dumps(as_dict(found, moves)))
        return
    routing = found.routing
    typer.echo(f"{found.id}  {found.state}  {found.route}  {routing.reason}")
    for name, value in (("why", routing.detail), ("model", routing.provider_model), ("usd", routing.usd)):
        if value not in ("", None):
            typer.echo(f"  {name:<8}{value}")
    for change in routing.changes:
        typer.echo(f"  {'changes':<8}{change}")
    for move in moves:
        at = datetime.fromtimestamp(move.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"  {at}  moved to {move.route}: {move.route_reason}")


def read_job(tenant_id: TenantId, job_id: JobId, settings: "Settings") -> "tuple[Job, Sequence[JobEvent]]":
    """The job and its events, from the configured database."""
    from filmgate.scheduling import open_reader
    from filmgate.store.keys import open_keys

    with opened_database(settings) as database:
        reader = open_reader(database, open_keys(settings.store, settings.data))
        try:
            return reader.find(tenant_id, job_id), reader.events(tenant_id, job_id)
        except JobNotFound as exc:
            raise JobNotFound(f"tenant {tenant_id} has no job {job_id}; see --tenant", option="JOB") from exc


def as_dict(job: "Job", moves: "Sequence[JobEvent]") -> dict[str, object]:
    """The output of `--json`. It contains nothing of the request."""
    return {
        "id": job.id,
        "tenant": job.tenant_id,
        "state": job.state,
        "route": job.route,
        "routing": asdict(job.routing),
        "moves": [{"at": move.at, "route": move.route, "reason": move.route_reason} for move in moves],
    }
