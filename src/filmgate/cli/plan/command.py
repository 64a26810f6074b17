"""Builds a command from a function that answers a question.

The keyword parameters of the function are its options. The built command adds the options that all commands
share, opens the catalog, and prints the answer.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from filmgate.cli.options import AsJson, options_of
from filmgate.cli.plan import options

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
    from filmgate.settings import load_settings

    catalog = inputs.open_catalog(catalog_file, price_file)
    chosen = catalog.region(region or load_settings().planner.region)
    facts = Facts(catalog, load_calibration(), chosen.name)
    show(answer(facts), is_json=is_json, adr=adr, html=html)


def plan_command(answer: "Callable[..., Answer]", *sources: Callable[..., Any]) -> Callable[..., None]:
    """A command with the shared options and those of `sources`, or of `answer` if there are none."""
    own: dict[str, inspect.Parameter] = {}
    for source in sources or (answer,):
        own |= options_of(source)
    shared = options_of(print_answer)

    def command(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in shared}
        print_answer(lambda facts: answer(facts, **given), **chosen)

    command.__doc__ = answer.__doc__
    command.__signature__ = inspect.Signature([*(own | shared).values()])  # type: ignore[attr-defined]
    return command
