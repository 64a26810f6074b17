"""The options of `filmgate tenant` and their values."""

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from filmgate.errors import UsageError
from filmgate.jobs import ScreeningAction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from filmgate.tenants.base import Scope

Name = Annotated[str, typer.Argument(help="a-z, 0-9 and -, at most 63 characters.", show_default=False)]
Scopes = Annotated[str | None, typer.Option(help="Comma-separated: generate, read, admin.")]
Weight = Annotated[float | None, typer.Option(min=0.01, help="Share of the GPUs relative to other tenants.")]
MaxQueued = Annotated[str | None, typer.Option(help="Maximum queued jobs; none: no limit.")]
MaxRunning = Annotated[str | None, typer.Option(help="Maximum running jobs; none: no limit.")]
GpuSeconds = Annotated[str | None, typer.Option(help="Maximum GPU-seconds per day; none: no limit.")]
Certificate = Annotated[
    str | None, typer.Option(help="RFC 4514 subject of its client certificate; none: no certificate.")
]
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
ScreeningChoices = Annotated[
    list[str] | None,
    typer.Option(
        "--screening",
        metavar="CATEGORY=ACTION",
        help="What is done with prompts of a category: allow, flag, reject or default. Repeatable.",
        show_default=False,
    ),
]
IsDedicated = Annotated[
    bool | None,
    typer.Option(
        "--dedicated/--shared",
        help="Render its jobs only on workers started with --tenant.",
        show_default=False,
    ),
]
SloSeconds = Annotated[
    str | None,
    typer.Option(help="Its clips must be ready within these seconds; none: as the class of clip."),
]
SloTarget = Annotated[
    str | None,
    typer.Option(help="Share of its jobs that must be in time, such as 0.99; none: as the class of clip."),
]
Confirmed = Annotated[bool, typer.Option("--yes", help="Confirm. It cannot be undone.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

_DURATION = re.compile(r"(\d{1,9})(s|m|h|d)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_seconds(text: str, option: str) -> float:
    """Seconds of a duration such as 90s, 30m, 24h or 7d."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration such as 30m, 24h or 7d", option=option)
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def read_scopes(text: str) -> "frozenset[Scope]":
    from filmgate.tenants.base import Scope

    try:
        return frozenset(Scope(scope.strip()) for scope in text.split(","))
    except ValueError as exc:
        raise UsageError(f"{exc}; choose from generate, read, admin", option="--scopes") from exc


def read_share(
    weight: float | None, max_queued: str | None, max_running: str | None, gpu_seconds: str | None
) -> dict[str, Any]:
    """The given options as fields of a Share."""
    share: dict[str, Any] = {} if weight is None else {"weight": weight}
    if max_queued is not None:
        share["max_queued"] = _read_limit(max_queued, "--max-queued")
    if max_running is not None:
        share["max_running"] = _read_limit(max_running, "--max-running")
    if gpu_seconds is not None:
        option = "--gpu-seconds-per-day"
        share["max_gpu_seconds_per_day"] = None if gpu_seconds == "none" else _number(gpu_seconds, option)
    return share


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


def read_objective(seconds: str | None, target: str | None) -> dict[str, Any]:
    """The given options as fields of a PartialObjective."""
    changes: dict[str, Any] = {}
    if seconds is not None:
        changes["seconds"] = _read_part(
            seconds, "--slo-seconds", float("inf"), "a positive number of seconds"
        )
    if target is not None:
        changes["target"] = _read_part(target, "--slo-target", 1.0, "a share between 0 and 1")
    return changes


def _read_part(text: str, option: str, below: float, expected: str) -> float | None:
    if text == "none":
        return None
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < below:
        raise UsageError(f"{text!r} is not {expected}, or none", option=option)
    return number


def _read_limit(text: str, option: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or not int(text[:12]) >= 1:
        raise UsageError(f"{text!r} is not a whole number of at least 1, or none", option=option)
    return int(text[:12])


def _number(text: str, option: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"{text!r} is not a number of at least 0, or none", option=option)
    return number


def _usd(text: str) -> float:
    try:
        return _number(text, "--managed-max-usd")
    except UsageError as exc:
        raise UsageError(
            f"{text!r} is not a price; use a number of USD, or none", option="--managed-max-usd"
        ) from exc


def read_screening(
    present: "Mapping[str, ScreeningAction]", choices: list[str]
) -> "Mapping[str, ScreeningAction]":
    """The actions by category with these CATEGORY=ACTION changes. Raises UsageError."""
    from filmgate.admission.screening import open_rules
    from filmgate.settings import load_settings

    actions = dict(present)
    if not choices:
        return actions
    rules = open_rules(load_settings().admission.rules_file)
    for choice in choices:
        name, _, action = choice.partition("=")
        rules.require_changeable(name, "--screening")
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
