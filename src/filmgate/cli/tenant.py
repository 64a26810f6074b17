"""`filmgate tenant`: tenants, their API keys, quotas and policies."""

import json
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.audit.records import COMMAND
from filmgate.cli.data_folder import (
    Data,
    opened_database,
    report_data_folder,
    require_database,
    settings_with,
)
from filmgate.cli.options import AsJson, with_options_of
from filmgate.cli.tenant_options import Confirmed, Name, TenantChanges, read_changes, read_seconds
from filmgate.errors import UsageError
from filmgate.jobs import ManagedPolicy, Share, TenantId

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from filmgate.maintenance.offboarding import Offboarded, Offboarding
    from filmgate.tenants.base import IssuedKey, PartialObjective, Tenant
    from filmgate.tenants.registry import TenantRegistry

tenant = typer.Typer(help="Manage tenants, API keys and quotas.", no_args_is_help=True)


@tenant.command("add")
@with_options_of(read_changes, scopes="generate,read", weight=1.0)
def add_tenant(changes: TenantChanges, name: Name, *, data: Data = None, is_json: AsJson = False) -> None:
    """Create a tenant and print its API key. The key is not shown again."""
    from filmgate.tenants.base import Tenant

    wanted = changes.apply(Tenant(TenantId(name)))
    with opened_registry(data, may_create=True) as registry:
        issued = registry.add(wanted, COMMAND)
    print_key(issued, is_json=is_json)


@tenant.command("set")
@with_options_of(read_changes)
def set_tenant(changes: TenantChanges, name: Name, *, data: Data = None, is_json: AsJson = False) -> None:
    """Change a tenant. Options that are not given keep their values."""
    if not changes:
        raise UsageError("set at least one option; see `filmgate tenant set --help`", option="NAME")
    with opened_registry(data) as registry:
        changed = registry.update(TenantId(name), changes.apply, COMMAND)
    typer.echo(json.dumps(as_dict(changed)) if is_json else describe(changed))


@tenant.command("list")
def list_tenants(data: Data = None, is_json: AsJson = False) -> None:
    """List all tenants with their scopes and limits, without keys."""
    with opened_registry(data) as registry:
        tenants = registry.tenants()
    if is_json:
        typer.echo(json.dumps({"tenants": [as_dict(t) for t in tenants]}))
        return
    for t in tenants:
        state = ("  dedicated" if t.is_dedicated else "") + ("" if t.is_enabled else "  disabled")
        scopes = ",".join(sorted(t.scopes))
        managed = describe_policy(t.managed)
        screening = f", screening ({describe_screening(t)})" if t.screening else ""
        typer.echo(f"{t.id:<20}  {scopes:<20}  {describe_share(t.share)}, {managed}{screening}{state}")


@tenant.command("show")
def show_tenant(name: Name, data: Data = None, is_json: AsJson = False) -> None:
    """Print one tenant."""
    with opened_registry(data) as registry:
        found = registry.find(TenantId(name))
    typer.echo(json.dumps(as_dict(found)) if is_json else describe(found))


@tenant.command("rotate")
def rotate_key(
    name: Name,
    overlap: Annotated[
        str, typer.Option(help="How long older keys stay valid, such as 30m, 24h or 7d.")
    ] = "0s",
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Create and print a new API key, and revoke all older keys. The key is not shown again."""
    seconds = read_seconds(overlap, "--overlap")
    with opened_registry(data) as registry:
        issued = registry.rotate(TenantId(name), seconds, COMMAND)
    print_key(issued, is_json=is_json)
    ending = f"expire in {overlap}" if seconds else "are revoked; --overlap 24h would keep them for a day"
    typer.echo(f"older keys of {name} {ending}", err=True)


@tenant.command("enable")
def enable_tenant(name: Name, data: Data = None, is_json: AsJson = False) -> None:
    """Accept requests of a disabled tenant again. Its keys do not change."""
    with opened_registry(data) as registry:
        enabled = registry.update(TenantId(name), lambda old: replace(old, is_enabled=True), COMMAND)
    typer.echo(json.dumps(as_dict(enabled)) if is_json else f"{enabled.id} is enabled")


@tenant.command("disable")
def disable_tenant(name: Name, data: Data = None, is_json: AsJson = False) -> None:
    """Reject new requests of a tenant. Accepted jobs still finish."""
    with opened_registry(data) as registry:
        disabled = registry.disable(TenantId(name), COMMAND)
    typer.echo(json.dumps(as_dict(disabled)) if is_json else f"{disabled.id} is disabled")


@tenant.command("forget")
def forget_tenant(
    name: Name, is_confirmed: Confirmed = False, data: Data = None, is_json: AsJson = False
) -> None:
    """Cancel a tenant's jobs and destroy its encryption key, so that its data can never be read again."""
    with opened_tenant_data(name, data, is_confirmed=is_confirmed) as offboarding:
        _print_offboarded(name, offboarding.forget(TenantId(name), COMMAND), is_json=is_json)


@tenant.command("delete")
def delete_tenant(
    name: Name, is_confirmed: Confirmed = False, data: Data = None, is_json: AsJson = False
) -> None:
    """Delete a tenant with its jobs, encryption key, objects and API keys."""
    with opened_tenant_data(name, data, is_confirmed=is_confirmed) as offboarding:
        _print_offboarded(name, offboarding.delete(TenantId(name), COMMAND), is_json=is_json)


def _print_offboarded(name: str, done: "Offboarded", *, is_json: bool) -> None:
    text = f"{name}: {done.jobs} jobs and {done.objects} objects deleted, the encryption key is destroyed"
    typer.echo(json.dumps({"tenant": name} | asdict(done)) if is_json else text)


@contextmanager
def opened_tenant_data(name: str, data: "Path | None", *, is_confirmed: bool) -> "Iterator[Offboarding]":
    """Everything that belongs to tenants: jobs, keys and objects. Raises UsageError without --yes."""
    from filmgate.maintenance.offboarding import opened_offboarding

    if not is_confirmed:
        message = f"this permanently destroys all data of tenant {name}; pass --yes to confirm"
        raise UsageError(message, option="--yes")
    settings = settings_with(data)
    require_database(settings)
    report_data_folder(settings)
    with opened_offboarding(settings) as offboarding:
        yield offboarding


@contextmanager
def opened_registry(data: "Path | None", *, may_create: bool = False) -> "Iterator[TenantRegistry]":
    """The tenants in the configured database."""
    from filmgate.tenants.registry import TenantRegistry

    with opened_database(settings_with(data), may_create=may_create) as database:
        yield TenantRegistry(database)


def describe(t: "Tenant") -> str:
    """A tenant as rows."""
    rows = {
        "tenant": t.id,
        "state": "enabled" if t.is_enabled else "disabled",
        "scopes": ", ".join(sorted(t.scopes)),
        "limits": describe_share(t.share),
        "certificate": t.certificate or "none",
        "screening": describe_screening(t) or "default",
        "provider": describe_policy(t.managed),
        "objective": describe_objective(t.objective),
        "workers": "its own (--tenant)" if t.is_dedicated else "shared",
        "created": datetime.fromtimestamp(t.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return "\n".join(f"{name:<13}{value}" for name, value in rows.items())


def describe_objective(objective: "PartialObjective") -> str:
    """The tenant's own objective as text."""
    parts = [] if objective.target is None else [f"{100 * objective.target:.4g} %"]
    parts += [] if objective.seconds is None else [f"in {objective.seconds:g} s"]
    return " ".join(parts) or "by clip class"


def describe_screening(t: "Tenant") -> str:
    """The actions that differ from the rules, as text."""
    return ", ".join(f"{name}={action}" for name, action in sorted(t.screening.items()))


def describe_share(share: Share) -> str:
    """Weight and quotas as text."""
    limits = [f"weight {share.weight:g}"]
    if share.max_queued is not None:
        limits.append(f"at most {share.max_queued} queued")
    if share.max_running is not None:
        limits.append(f"at most {share.max_running} running")
    if share.max_gpu_seconds_per_day is not None:
        limits.append(f"at most {share.max_gpu_seconds_per_day:g} GPU-seconds per day")
    return ", ".join(limits)


def describe_policy(managed: ManagedPolicy) -> str:
    """The policy as text."""
    if not managed.is_allowed:
        return "no managed provider"
    limits = [f"regions {','.join(managed.regions) or 'any'}"]
    if managed.max_usd_per_clip is not None:
        limits.append(f"at most {managed.max_usd_per_clip:g} USD per clip")
    if managed.may_resize:
        limits.append("may resize")
    if managed.may_change_length:
        limits.append("may change length")
    return f"managed provider ({', '.join(limits)})"


def print_key(issued: "IssuedKey", *, is_json: bool) -> None:
    """Print the key alone on stdout, for pipes; the explanation goes to stderr."""
    if is_json:
        typer.echo(json.dumps(as_dict(issued.tenant) | {"api_key": issued.secret}))
        return
    typer.echo(f"API key of {issued.tenant.id} (it is not shown again):", err=True)
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
        "screening": dict(t.screening),
        "managed": asdict(t.managed),
        "is_dedicated": t.is_dedicated,
        "objective": asdict(t.objective),
    }
