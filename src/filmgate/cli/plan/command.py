"""Builds a command from a function that answers a question.

The keyword parameters of the function are its options. The built command adds the options that all commands
share, opens the catalog, and prints the answer.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from filmgate.cli.options import AsJson, options_of
from filmgate.cli.plan import options
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.catalog.calibrations import Calibration
    from filmgate.catalog.catalog import Catalog
    from filmgate.planner.answer import Answer


@dataclass(frozen=True, slots=True)
class Facts:
    """The catalog, the calibration and the region that a question is answered with."""

    catalog: "Catalog"
    calibration: "Calibration"
    region: str


AnswerFunction: TypeAlias = "Callable[..., Answer]"

_UNSUPPORTED = Annotated[str | None, typer.Option(hidden=True)]


def print_answer(  # noqa: PLR0913 - one parameter per option
    answer: "Callable[[Facts], Answer]",
    *,
    region: options.Region = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: AsJson = False,
    adr: options.Adr = None,
    html: options.Html = None,
) -> None:
    """Answer a question with the facts that these options choose, and print the answer."""
    from filmgate.catalog.loader import load_calibration
    from filmgate.cli.plan import inputs
    from filmgate.cli.plan.output import show

    catalog = inputs.open_catalog(catalog_file, price_file)
    facts = Facts(catalog, load_calibration(), inputs.region_or_default(region, catalog))
    show(answer(facts), is_json=is_json, adr=adr, html=html)


def plan_command(
    answer: AnswerFunction, *sources: Callable[..., Any], unsupported: Mapping[str, str] | None = None
) -> Callable[..., None]:
    """A command with the shared options and those of `sources`, or of `answer` if there are none.

    `unsupported` maps hidden options that other commands have to a message about what to use instead.
    """
    own: dict[str, inspect.Parameter] = {}
    for source in sources or (answer,):
        own |= options_of(source)
    shared, messages = options_of(print_answer), dict(unsupported or {})
    hidden = {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_UNSUPPORTED)
        for name in messages
    }

    def command(**given: Any) -> None:
        for name, message in messages.items():
            if given.pop(name) is not None:
                raise UsageError(message, option=f"--{name}")
        chosen = {name: given.pop(name) for name in shared}
        print_answer(lambda facts: answer(facts, **given), **chosen)

    command.__doc__ = answer.__doc__
    command.__signature__ = inspect.Signature([*(own | shared | hidden).values()])  # type: ignore[attr-defined]
    return command
