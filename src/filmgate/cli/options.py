"""Options that commands share: `--json`, names of tenants, and groups of options of a function."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from filmgate.errors import UsageError
from filmgate.jobs import JOB_ID_PATTERN, TENANT_ID_PATTERN, JobId, TenantId

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]
Command: TypeAlias = Callable[..., None]


def read_tenant(name: str, option: str = "--tenant") -> TenantId:
    """Raises UsageError for a text that cannot be the name of a tenant."""
    if not TENANT_ID_PATTERN.fullmatch(name):
        message = f"{name!r} is not the name of a tenant: a-z, 0-9 and -, at most 63 characters"
        raise UsageError(message, option=option)
    return TenantId(name)


def read_video(video_id: str, option: str = "ID") -> JobId:
    """Raises UsageError for a text that cannot be the id of a video."""
    if not JOB_ID_PATTERN.fullmatch(video_id):
        message = f"{video_id!r} is not the id of a video, video_ and 32 hexadecimal digits"
        raise UsageError(f"{message}; `filmgate jobs list` prints the newest ones", option=option)
    return JobId(video_id)


def options_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a function, which are its options."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}


def with_options_of(source: Callable[..., Any], **defaults: object) -> Callable[[Command], Command]:
    """Add the options of `source` to a command, which gets the result of `source` as its first argument.

    `defaults` replace those of `source`.
    """
    added = {
        name: option.replace(default=defaults.get(name, option.default))
        for name, option in options_of(source).items()
    }

    def decorate(command: Command) -> Command:
        own, parameters = options_of(command), inspect.signature(command).parameters
        _, *positional = (each for name, each in parameters.items() if name not in own)

        def run(**given: Any) -> None:
            result = source(**{name: given.pop(name) for name in added})
            command(result, **given)

        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature([*positional, *added.values(), *own.values()])  # type: ignore[attr-defined]
        return run

    return decorate
