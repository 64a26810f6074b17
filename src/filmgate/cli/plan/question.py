"""What every question has in common: from which facts, where, and how its answer is shown.

A question is a function from its own options to an answer. `question` makes a command of it: the options all
of them take are added, the catalog is opened, the answer is shown.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from filmgate.cli.plan import options
from filmgate.errors import UsageError

if TYPE_CHECKING:
    from filmgate.catalog.calibrations import Calibration
    from filmgate.catalog.catalog import Catalog
    from filmgate.planner.answer import Answer


@dataclass(frozen=True, slots=True)
class Ground:
    """What a question stands on."""

    catalog: "Catalog"
    calibration: "Calibration"
    region: str


Answering: TypeAlias = "Callable[..., Answer]"
Parameters: TypeAlias = "dict[str, inspect.Parameter]"

_REFUSED = Annotated[str | None, typer.Option(hidden=True)]


def shared_options(
    *,
    region: options.Region = None,
    catalog_file: options.UserFile = None,
    price_file: options.PriceFile = None,
    is_json: options.Json = False,
    adr: options.Adr = None,
    html: options.Html = None,
) -> Callable[["Callable[[Ground], Answer]"], None]:
    """Shows the answer to a question on the ground these options describe."""

    def show_answer(answer: "Callable[[Ground], Answer]") -> None:
        from filmgate.catalog.loader import load_calibration
        from filmgate.cli.plan import opening
        from filmgate.cli.plan.output import show

        catalog = opening.open_catalog(catalog_file, price_file)
        ground = Ground(catalog, load_calibration(), opening.region_or_default(region, catalog))
        show(answer(ground), is_json=is_json, adr=adr, html=html)

    return show_answer


def question(
    answer: Answering, *askers: Callable[..., Any], refuse: Mapping[str, str] | None = None
) -> Callable[..., None]:
    """A command with the options of `askers` (of `answer` itself without any) and the shared ones.

    `refuse` names options that make no sense here, each with what to do instead.
    """
    own: Parameters = {}
    for asker in askers or (answer,):
        own |= options_of(asker)
    shared, senseless = options_of(shared_options), dict(refuse or {})
    hidden = {
        name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_REFUSED)
        for name in senseless
    }

    def command(**given: Any) -> None:
        for name, remedy in senseless.items():
            if given.pop(name) is not None:
                raise UsageError(remedy, option=f"--{name}")
        show_answer = shared_options(**{name: given.pop(name) for name in shared})
        show_answer(lambda ground: answer(ground, **given))

    command.__doc__ = answer.__doc__
    command.__signature__ = inspect.Signature([*(own | shared | hidden).values()])  # type: ignore[attr-defined]
    return command


def options_of(asker: Callable[..., Any]) -> Parameters:
    """Its keyword parameters: each is an option."""
    parameters = inspect.signature(asker).parameters.values()
    return {each.name: each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}
