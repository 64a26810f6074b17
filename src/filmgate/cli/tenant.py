"""`filmgate tenant`: tenants, their API keys, quotas and policies."""

import json
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from filmgate.errors import UsageError
from filmgate.jobs import ManagedPolicy, ScreeningAction, Share, TenantId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from filmgate.tenants.base import IssuedKey, Tenant, TenantRegistry

tenant = typer.Typer(help="Tenants and their API keys.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="a-z, 0-9 and -, at most 63 characters.", show_default=False)]
IsManaged = Annotated[
    bool | None,
    typer.Option(
        "--managed/--no-managed", help="Allow a managed provider to render its jobs.", show_default=False
    ),
]
Regions = Annotated[
    str | None,
    typer.Option("--managed-regions", help="Allowed regions of the provider, comma-separated; empty: any."),
]
MaxUsd = Annotated[
    str | None,
    typer.Option("--managed-max-usd", help="Maximum price of a clip at the provider in USD; none: no limit."),
]
MayResize = Annotated[
    bool | None,
    typer.Option(
        "--managed-resize/--no-managed-resize",
        help="Allow the provider to change the size.",
        show_default=False,
    ),
]
MayRelength = Annotated[
    bool | None,
    typer.Option(
        "--managed-relength/--no-managed-relength",
        help="Allow the provider to change the length.",
        show_default=False,
    ),
]
Confirmed = Annotated[bool, typer.Option("--yes", help="Confirm. It cannot be undone.")]
ScreeningChoices = Annotated[
    list[str] | None,
    typer.Option(
        "--screening",
        metavar="CATEGORY=ACTION",
        help="What is done with prompts of a category: allow, flag, reject or default. Repeatable.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@tenant.command("add")
def add_tenant(  # noqa: PLR0913, PLR0917 - one argument per flag
    name: Name,
    scopes: Annotated[str, typer.Option(help="Comma-separated: generate, read, admin.")] = "generate,read",
    weight: Annotated[
        float, typer.Option(min=0.01, help="Share of the GPUs relative to other tenants.")
    ] = 1.0,
    max_queued: Annotated[int | None, typer.Option(min=1, help="Maximum queued jobs.")] = None,
    max_running: Annotated[int | None, typer.Option(min=1, help="Maximum running jobs.")] = None,
    gpu_seconds_per_day: Annotated[
        float | None, typer.Option(min=0, help="Maximum GPU-seconds per day.")
    ] = None,
    certificate: Annotated[
        str | None, typer.Option(help="RFC 4514 subject of its client certificate.")
    ] = None,
    is_managed: IsManaged = None,
    regions: Regions = None,
    max_usd: MaxUsd = None,
    may_resize: MayResize = None,
    may_relength: MayRelength = None,
    screening: ScreeningChoices = None,
    is_json: AsJson = False,
) -> None:
    """Create a tenant and print its API key. The key is not shown again."""
    from filmgate.tenants.base import Scope, Tenant

    try:
        wanted = frozenset(Scope(scope.strip()) for scope in scopes.split(","))
    except ValueError as exc:
        raise UsageError(f"{exc}; choose from generate, read, admin", option="--scopes") from exc
    share = Share(weight, max_queued, max_running, gpu_seconds_per_day)
    changes = read_policy(
        is_managed=is_managed,
        regions=regions,
        max_usd=max_usd,
        may_resize=may_resize,
        may_relength=may_relength,
    )
    added = Tenant(
        TenantId(name),
        share,
        wanted,
        certificate=certificate,
        screening=read_screening({}, screening or []),
        managed=replace(ManagedPolicy(), **changes),
    )
    with opened_registry() as registry:
        issued = registry.add(added)
    print_key(issued, is_json=is_json)


@tenant.command("set")
def set_policy(  # noqa: PLR0913, PLR0917 - one argument per flag
    name: Name,
    is_managed: IsManaged = None,
    regions: Regions = None,
    max_usd: MaxUsd = None,
    may_resize: MayResize = None,
    may_relength: MayRelength = None,
    screening: ScreeningChoices = None,
    is_json: AsJson = False,
) -> None:
    """Change screening and what a managed provider may do for a tenant. Other options keep their values."""
    changes = read_policy(
        is_managed=is_managed,
        regions=regions,
        max_usd=max_usd,
        may_resize=may_resize,
        may_relength=may_relength,
    )
    if not changes and not screening:
        raise UsageError("set at least one option", option="--managed")
    with opened_registry() as registry:
        changed = registry.find(TenantId(name))
        if screening:
            changed = registry.set_screening(changed.id, read_screening(changed.screening, screening))
        if changes:
            changed = registry.set_managed_policy(changed.id, replace(changed.managed, **changes))
    typer.echo(json.dumps(as_dict(changed)) if is_json else f"{changed.id}: {describe(changed)}")


@tenant.command("list")
def list_tenants(is_json: AsJson = False) -> None:
    """Print every tenant with its scopes and limits, without keys."""
    with opened_registry() as registry:
        tenants = registry.tenants()
    if is_json:
        typer.echo(json.dumps({"tenants": [as_dict(t) for t in tenants]}))
        return
    for t in tenants:
        state = "" if t.is_enabled else "  disabled"
        limits = ", ".join(f"{key} {value:g}" for key, value in asdict(t.share).items() if value is not None)
        typer.echo(f"{t.id:<20}  {','.join(sorted(t.scopes)):<20}  {limits}, {describe(t)}{state}")


@tenant.command("rotate")
def rotate_key(
    name: Name,
    overlap: Annotated[float, typer.Option(min=0, help="Seconds for which older keys stay valid.")] = 0.0,
    is_json: AsJson = False,
) -> None:
    """Create an API key, print it, and revoke all older keys. The key is not shown again."""
    with opened_registry() as registry:
        issued = registry.rotate(TenantId(name), overlap)
    print_key(issued, is_json=is_json)


@tenant.command("disable")
def disable_tenant(name: Name, is_json: AsJson = False) -> None:
    """Reject the requests of a tenant. Accepted jobs still finish."""
    with opened_registry() as registry:
        disabled = registry.disable(TenantId(name))
    typer.echo(json.dumps(as_dict(disabled)) if is_json else f"{disabled.id} is disabled")


@tenant.command("forget")
def forget_tenant(name: Name, is_confirmed: Confirmed = False, is_json: AsJson = False) -> None:
    """Cancel a tenant's jobs and destroy its encryption key: nothing it stored can be read again."""
    _offboard(name, is_confirmed=is_confirmed, is_json=is_json, is_deleted=False)


@tenant.command("delete")
def delete_tenant(name: Name, is_confirmed: Confirmed = False, is_json: AsJson = False) -> None:
    """Delete a tenant: its jobs, its encryption key, its objects and its API keys."""
    _offboard(name, is_confirmed=is_confirmed, is_json=is_json, is_deleted=True)


def _offboard(name: str, *, is_confirmed: bool, is_json: bool, is_deleted: bool) -> None:
    from filmgate.settings import load_settings
    from filmgate.worker.offboarding import opened_offboarding

    if not is_confirmed:
        raise UsageError(f"everything that {name} stored becomes unreadable for good", option="--yes")
    with opened_offboarding(load_settings()) as offboarding:
        done = (offboarding.delete if is_deleted else offboarding.forget)(TenantId(name))
    text = f"{name}: {done.jobs} jobs and {done.objects} objects deleted, the encryption key is destroyed"
    typer.echo(json.dumps({"tenant": name} | asdict(done)) if is_json else text)


@contextmanager
def opened_registry() -> "Iterator[TenantRegistry]":
    """The tenants in the configured database."""
    from filmgate.database import open_database
    from filmgate.settings import load_settings
    from filmgate.tenants import open_tenants

    settings = load_settings()
    database = open_database(settings.queue, settings.data)
    try:
        yield open_tenants(database)
    finally:
        database.close()


def read_policy(
    *,
    is_managed: bool | None,
    regions: str | None,
    max_usd: str | None,
    may_resize: bool | None,
    may_relength: bool | None,
) -> dict[str, Any]:
    """The given options as fields of a ManagedPolicy."""
    given: dict[str, Any] = {
        "is_allowed": is_managed,
        "may_resize": may_resize,
        "may_change_length": may_relength,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    if regions is not None:
        changes["regions"] = tuple(region.strip() for region in regions.split(",") if region.strip())
    if max_usd is not None:
        changes["max_usd_per_clip"] = None if max_usd == "none" else _usd(max_usd)
    return changes


def _usd(text: str) -> float:
    try:
        usd = float(text)
    except ValueError:
        usd = -1.0
    if not 0 <= usd < float("inf"):
        raise UsageError(f"{text!r} is not a price; use a number of USD, or none", option="--managed-max-usd")
    return usd


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


def read_screening(
    present: "Mapping[str, ScreeningAction]", choices: list[str]
) -> "Mapping[str, ScreeningAction]":
    """The actions by category with these CATEGORY=ACTION changes. Raises UsageError."""
    from filmgate.admission.screening import open_rules
    from filmgate.settings import load_settings

    categories = open_rules(load_settings().admission.rules_file).categories if choices else {}
    actions = dict(present)
    for choice in choices:
        name, _, action = choice.partition("=")
        if name not in categories:
            known = ", ".join(sorted(n for n, category in categories.items() if not category.is_fixed))
            raise UsageError(f"no category is named {name!r}; choose from {known}", option="--screening")
        if categories[name].is_fixed:
            raise UsageError(f"{name} has a fixed action; a tenant cannot change it", option="--screening")
        actions.pop(name, None)
        if action != "default":
            actions[name] = _action(action)
    return actions


def _action(text: str) -> ScreeningAction:
    try:
        return ScreeningAction(text)
    except ValueError as exc:
        raise UsageError(
            f"{text!r} is not an action; choose from allow, flag, reject, default", option="--screening"
        ) from exc


def describe(t: "Tenant") -> str:
    """The policies of a tenant as text."""
    choices = ", ".join(f"{name}={action}" for name, action in sorted(t.screening.items()))
    return describe_policy(t.managed) + (f", screening ({choices})" if choices else "")


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
    }
