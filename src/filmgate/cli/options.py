"""Options that commands share: `--json`, and groups of options that belong to a function."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object to stdout.")]
Command: TypeAlias = Callable[..., None]


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
