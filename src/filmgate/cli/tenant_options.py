"""The options of `filmgate tenant` and their values."""

import re
from dataclasses import dataclass, replace
from math import inf, nan
from typing import TYPE_CHECKING, Annotated, Any

import typer

from filmgate.errors import UsageError
from filmgate.jobs import ScreeningAction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from filmgate.tenants.base import Scope, Tenant

Name = Annotated[str, typer.Argument(help="a-z, 0-9 and -, at most 63 characters.", show_default=False)]
Scopes = Annotated[str | None, typer.Option(help="Comma-separated: generate, read, admin.")]
Weight = Annotated[
    float | None, typer.Option(min=0.01, max=1e6, help="Share of the GPUs relative to other tenants.")
]
MaxQueued = Annotated[str | None, typer.Option(help="Maximum number of queued jobs, or `none` for no limit.")]
MaxRunning = Annotated[
    str | None, typer.Option(help="Maximum number of running jobs, or `none` for no limit.")
]
GpuSeconds = Annotated[str | None, typer.Option(help="Maximum GPU-seconds per day, or `none` for no limit.")]
Certificate = Annotated[
    str | None, typer.Option(help="RFC 4514 subject of its client certificate, or `none`.")
]
IsManaged = Annotated[
    bool | None,
    typer.Option(
        "--managed/--no-managed", help="Allow a managed provider to render its jobs.", show_default=False
    ),
]
Regions = Annotated[
    str | None,
    typer.Option("--managed-regions", help="Allowed provider regions, comma-separated, or '' for any."),
]
MaxUsd = Annotated[
    str | None,
    typer.Option("--managed-max-usd", help="Maximum provider price per clip in USD, or `none` for no limit."),
]
MayResize = Annotated[
    bool | None,
    typer.Option(
        "--managed-resize/--no-managed-resize",
        help="Allow the provider to change the size.",
        show_default=False,
    ),
]
MayChangeLength = Annotated[
    bool | None,
    typer.Option(
        "--managed-change-length/--no-managed-change-length",
        help="Allow the provider to change the length.",
        show_default=False,
    ),
]
ScreeningChoices = Annotated[
    list[str] | None,
    typer.Option(
        "--screening",
        metavar="CATEGORY=ACTION",
        help="Action for prompts of a category: allow, flag, reject or default. Repeat it for more.",
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
    typer.Option(help="Deadline for its clips in seconds, or `none` for the clip class's deadline."),
]
SloTarget = Annotated[
    str | None,
    typer.Option(
        help="Share of its jobs that must be on time, such as 0.99, or `none` for the clip class's."
    ),
]
Confirmed = Annotated[bool, typer.Option("--yes", help="Confirm. This cannot be undone.")]

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

    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in set(Scope)]:
        raise UsageError(
            f"there is no scope {unknown[0]!r}; choose from {', '.join(Scope)}", option="--scopes"
        )
    return frozenset(Scope(name) for name in names)


@dataclass(frozen=True, slots=True)
class Limit:
    """A number in the text of an option; `none` means no limit."""

    option: str
    expected: str
    is_valid: "Callable[[float], bool]"
    to_number: "Callable[[str], float]" = float

    def read(self, text: str) -> float | None:
        """Raises UsageError for anything else."""
        if text == "none":
            return None
        try:
            number = self.to_number(text)
        except ValueError:
            number = nan
        if not self.is_valid(number):
            raise UsageError(f"{text!r} is not {self.expected}, or none", option=self.option)
        return number


def _is_count(number: float) -> bool:
    return 1 <= number < 1e12


def _is_amount(number: float) -> bool:
    return 0 <= number < inf


_LIMITS = {
    "max_queued": Limit("--max-queued", "a whole number of at least 1", _is_count, int),
    "max_running": Limit("--max-running", "a whole number of at least 1", _is_count, int),
    "max_gpu_seconds_per_day": Limit("--gpu-seconds-per-day", "a number of at least 0", _is_amount),
    "max_usd_per_clip": Limit("--managed-max-usd", "a price; use a number of USD", _is_amount),
    "seconds": Limit("--slo-seconds", "a positive number of seconds", lambda number: 0 < number < inf),
    "target": Limit("--slo-target", "a share between 0 and 1", lambda number: 0 < number < 1),
}


@dataclass(frozen=True, slots=True)
class TenantChanges:
    """The given options as fields of a tenant and of its parts."""

    fields: dict[str, Any]
    share: dict[str, Any]
    managed: dict[str, Any]
    objective: dict[str, Any]
    screening: list[str]

    def __bool__(self) -> bool:
        return any((self.fields, self.share, self.managed, self.objective, self.screening))

    def apply(self, tenant: "Tenant") -> "Tenant":
        """The changed tenant. Raises UsageError for a screening choice that the rules do not allow."""
        return replace(
            tenant,
            share=replace(tenant.share, **self.share),
            managed=replace(tenant.managed, **self.managed),
            objective=replace(tenant.objective, **self.objective),
            screening=read_screening(tenant.screening, self.screening),
            **self.fields,
        )


def read_changes(  # noqa: PLR0913 - one parameter per option
    *,
    scopes: Scopes = None,
    weight: Weight = None,
    max_queued: MaxQueued = None,
    max_running: MaxRunning = None,
    gpu_seconds_per_day: GpuSeconds = None,
    certificate: Certificate = None,
    is_managed: IsManaged = None,
    regions: Regions = None,
    max_usd: MaxUsd = None,
    may_resize: MayResize = None,
    may_change_length: MayChangeLength = None,
    screening: ScreeningChoices = None,
    is_dedicated: IsDedicated = None,
    slo_seconds: SloSeconds = None,
    slo_target: SloTarget = None,
) -> TenantChanges:
    """What these options change. Raises UsageError."""
    fields = _given(is_dedicated=is_dedicated, scopes=None if scopes is None else read_scopes(scopes))
    if certificate is not None:
        fields["certificate"] = None if certificate in ("", "none") else certificate
    names = None if regions is None else tuple(name.strip() for name in regions.split(",") if name.strip())
    return TenantChanges(
        fields,
        share=_given(
            weight=weight,
            max_queued=max_queued,
            max_running=max_running,
            max_gpu_seconds_per_day=gpu_seconds_per_day,
        ),
        managed=_given(
            is_allowed=is_managed,
            regions=names,
            max_usd_per_clip=max_usd,
            may_resize=may_resize,
            may_change_length=may_change_length,
        ),
        objective=_given(seconds=slo_seconds, target=slo_target),
        screening=screening or [],
    )


def _given(**values: Any) -> dict[str, Any]:
    """The fields whose options are given."""
    return {
        name: _LIMITS[name].read(value) if name in _LIMITS else value
        for name, value in values.items()
        if value is not None
    }


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
