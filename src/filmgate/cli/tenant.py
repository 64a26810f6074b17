"""`filmgate tenant`: who may call, with which key, for how much."""

import json
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.errors import UsageError
from filmgate.jobs import Share, TenantId
from filmgate.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from filmgate.tenants.base import IssuedKey, Tenant, TenantRegistry

tenant = typer.Typer(help="Tenants and their API keys.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="a-z, 0-9 and -, at most 63 characters.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@tenant.command("add")
def add_tenant(  # noqa: PLR0913, PLR0917 - one argument per flag
    name: Name,
    scopes: Annotated[str, typer.Option(help="Of generate, read, admin.")] = "generate,read",
    weight: Annotated[float, typer.Option(min=0.01, help="Share of the GPUs against other tenants.")] = 1.0,
    max_queued: Annotated[int | None, typer.Option(min=1, help="Most jobs waiting.")] = None,
    max_running: Annotated[int | None, typer.Option(min=1, help="Most jobs running.")] = None,
    gpu_seconds_a_day: Annotated[float | None, typer.Option(min=0, help="Most GPU-seconds a day.")] = None,
    certificate: Annotated[str | None, typer.Option(help="Subject of its client certificate.")] = None,
    is_json: AsJson = False,
) -> None:
    """Add a tenant and print its API key, once."""
    from filmgate.tenants.base import Scope, Tenant

    try:
        wanted = frozenset(Scope(scope.strip()) for scope in scopes.split(","))
    except ValueError as exc:
        raise UsageError(f"{exc}; choose from generate, read, admin", option="--scopes") from exc
    share = Share(weight, max_queued, max_running, gpu_seconds_a_day)
    with opened_registry() as registry:
        issued = registry.add(Tenant(TenantId(name), share, wanted, certificate=certificate))
    print_key(issued, is_json=is_json)


@tenant.command("list")
def list_tenants(is_json: AsJson = False) -> None:
    """Print every tenant with its scopes and limits; never a key."""
    with opened_registry() as registry:
        tenants = registry.tenants()
    if is_json:
        typer.echo(json.dumps({"tenants": [as_dict(t) for t in tenants]}))
        return
    for t in tenants:
        state = "" if t.is_enabled else "  disabled"
        limits = ", ".join(f"{key} {value:g}" for key, value in asdict(t.share).items() if value is not None)
        typer.echo(f"{t.id:<20}  {','.join(sorted(t.scopes)):<20}  {limits}{state}")


@tenant.command("rotate")
def rotate_key(name: Name, is_json: AsJson = False) -> None:
    """Print a new API key, once; older keys of the tenant stop working now."""
    with opened_registry() as registry:
        issued = registry.rotate(TenantId(name))
    print_key(issued, is_json=is_json)


@tenant.command("disable")
def disable_tenant(name: Name, is_json: AsJson = False) -> None:
    """Refuse the tenant from now on; jobs already accepted still finish."""
    with opened_registry() as registry:
        disabled = registry.disable(TenantId(name))
    typer.echo(json.dumps(as_dict(disabled)) if is_json else f"{disabled.id} is disabled")


@contextmanager
def opened_registry() -> "Iterator[TenantRegistry]":
    """The tenants of the database the settings name."""
    from filmgate.database import open_database
    from filmgate.tenants import open_tenants

    settings = load_settings()
    database = open_database(settings.queue, settings.data)
    try:
        yield open_tenants(database)
    finally:
        database.close()


def print_key(issued: "IssuedKey", *, is_json: bool) -> None:
    """The key on stdout, so that it can be piped; the advice on stderr."""
    if is_json:
        typer.echo(json.dumps(as_dict(issued.tenant) | {"api_key": issued.secret}))
        return
    typer.echo(f"the API key of {issued.tenant.id}; it is shown this once:", err=True)
    typer.echo(issued.secret)


def as_dict(t: "Tenant") -> dict[str, object]:
    """A tenant as `--json` prints it."""
    return {
        "id": t.id,
        "scopes": sorted(t.scopes),
        "share": asdict(t.share),
        "is_enabled": t.is_enabled,
        "created_at": t.created_at,
        "certificate": t.certificate,
    }
