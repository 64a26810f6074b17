"""`--lora` of `filmgate generate`: adapters of the installation by name, or any file, hub id or s3:// URL."""

import re
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from filmgate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Container

    from filmgate.models.adapters import AdapterRegistry

_SCALE = re.compile(r"^(?P<place>.+?)(?::(?P<scale>-?\d*\.?\d+))?$")


def read_adapters(given: list[str], model: str, adapters_file: str) -> "tuple[AdapterRegistry, str | None]":
    """The adapters that `--lora` names, and the request field that chooses them.

    Raises UsageError for a file that does not exist, before a model is loaded.
    """
    from filmgate.models.adapters import AdapterCard, AdapterRegistry, open_adapters
    from filmgate.tenants.base import LOCAL_TENANT

    cards = {card.name: card for card in open_adapters(adapters_file).visible(LOCAL_TENANT)}
    names = {name: name for name in cards}  # by what stands on the command line
    chosen = []
    for text in given:
        found = _SCALE.match(text)
        place, scale = (found["place"], found["scale"]) if found else (text, None)
        if place not in names:
            names[place] = _new_name(place, cards)
            cards[names[place]] = AdapterCard(names[place], model, check_place(place))
        chosen.append(f"{names[place]}:{scale}" if scale else names[place])
    return AdapterRegistry(cards), ",".join(chosen) or None


def _new_name(place: str, taken: "Container[str]") -> str:
    """The name of the file; files of several trainings often have the same one."""
    stem = re.sub(r"[+,:\s]", "-", Path(place).stem)
    return next(name for name in chain([stem], (f"{stem}-{n}" for n in count(2))) if name not in taken)


def check_place(place: str) -> str:
    """The location of an adapter. Raises UsageError for a file that does not exist."""
    from filmgate.models.names import is_hub_file
    from filmgate.models.weights.location import is_remote

    if Path(place).expanduser().exists():
        return str(Path(place).expanduser())
    if is_remote(place) or is_hub_file(place):
        return place
    raise UsageError(
        f"there is no file {place!r}; give a safetensors file, a hub id such as OWNER/NAME, s3://BUCKET/PATH "
        "or a name of models.adapters_file, each with :SCALE if you like",
        option="--lora",
    )
